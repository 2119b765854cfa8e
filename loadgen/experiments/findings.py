"""What the limit is where a claim is missed, by experiment: read off the tables, so the causes named are inferred from them.

Kept beside the experiments, not in them: what is found out about a run is no part of what is run.
"""

FINDINGS = {
    "E1": """Core and routers give the same tokens/s at every rate: all there is to gain is which requests are late. Up to the best router's own
highest rate few are (under 1 % at half of it, about 2 % at 0.8), so the gain begins beyond it and ends where the engines' prefill is
used up. On mixed-lengths and agent-tools every engine soon holds the shared heads, and hits do not depend on where a request goes;
on long-chat they do, and there the core gains most.""",
    "E2": """agents-trace: conversations of 20,000 to 60,000 tokens left the engine that has them for one with less to do, where all of them was
computed anew (seen in the journal: a fifth of the turns moved, and lost 30,000 tokens each). Half of that was lanes: a turn with more than
2,048 new tokens needed one. Where half of the prompt is cached it does not any more, which this table does not show yet: at 2.6 requests/s 84 % of
the reusable tokens are found instead of 77 %, at 3.4 70 % instead of 57 % (sgl_cache_aware: 99 and 90 %). The rest is the score, which weighs
the wait of the one request and not what others wait for its prefill: counted twice, uncached tokens find 91 % at 2.6 and 68 % at 3.4.
reasoning-trace has no prefixes; at 8.3 requests/s its answers of up to 11,000 tokens fill the engines' memory, and the core holds long prompts
back, up to 45 s: 34 % of them in time instead of 72, of the short ones 95 instead of 91.""",
    "E3": """At these rates short prompts hardly wait with B8 either: 475 and 758 ms at the 99th percentile, where one full step of an engine takes
161 ms. The engines' long-prefill cap, on in every arm, does already what a lane does: a long prompt cannot own a step. And B8 counts
exactly what no router outside can see.""",
    "E4": """B8 counts exactly, and of four engines one is nearly always without a long prompt: its short ones wait 621 ms at the 99th percentile, not the
seconds behind a router that counts requests. 2.5 times less would be 250 ms, and one full step takes 161 ms. At B8's highest rate seeds differ
by more (0.42 x to 1.68 x) than the arms do.""",
    "E6": """Order acts on who waits in the gateway, and at this rate nobody waits for 4 s: nearly all that is late by one order is late by the other. The
plan's own sketch had put order between -0.6 and +3 points.""",
    "E8": """long-chat: no arm that knows better finds more than 76 %. The four caches, 534,000 tokens each, turn over in a few minutes, and the next
turn of a conversation often comes later; an unlimited cache would still have it. agent-tools: its few shared heads are on every engine
after a minute, so least requests finds 96 % of the ideal as well, and affinity has nothing left to save at the median.""",
    "E13a": """`admit all` is the same core: it sorts by class and by time left, so the urgent go first and only the rest waits. What refusals could save,
order has saved: at 1.5 times the load they are never needed, at 2 times they are worth 4 %. Critical requests miss their 400 ms because
nothing that runs is interrupted: they wait for the step under way and for what was sent before them (p50 234 ms, p99 707 ms).""",
    "E13b": """As E13a: in 20 s of overload nobody's patience ends, so that nobody has to be refused, and order alone keeps the urgent in time. B8 has
no queue to sort; at 1.2 times the scenario's rate the peak is too short to cost it a third of its good answers.""",
    "E14": """The margin is the p90 of the last 512 ratios of truth to expectation. Near the highest rate waits grow while they are counted, and the
margin follows behind: two points at most.""",
    "E19": """By its share the victim is first in turn whenever it waits; what it waits for is what runs: steps that are full of the aggressor's prompts and answers that
hold their places. Alone it has idle engines. In front of routers without turns nearly all of its requests are late.""",
}
