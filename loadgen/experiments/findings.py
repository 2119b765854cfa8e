"""What the limit is where a claim is missed, by experiment: read off the tables, so the causes named are inferred from them.

Kept beside the experiments, not in them: what is found out about a run is no part of what is run.
"""

FINDINGS = {
    "E1": """Core and routers give the same tokens/s at every rate: all there is to gain is which requests are late. Up to the best router's own
highest rate few are, so the gain begins beyond it. Until late first tokens were waited for, the core carried 9.17 and 6.80 requests/s on mixed-lengths
and agent-tools (1.14 x the best router; 1.08 and 0.98 x lmetric): a prompt was taken to be computed after four times its own time, for 400 tokens a
sixth of a second, while one full step takes as long. Near those rates 6 and 10 % of all prompts were given up so; their engines looked idle and drew more.
In one run 23 requests in six seconds went to an engine whose memory was full, and waited there for up to 6.8 s. Given up after half a minute it is 9.75 and
7.43 (1.22 and 1.25 x the best router, 1.14 and 1.08 x lmetric), on long-chat 3.36.
What is still missed is missed by this limit: one engine four times as fast, with one cache and nothing to choose, carries 10.7 and 8.5 requests/s under the
same core where four have 9.9 and 7.2 (seeds 7 to 9, between two rates). So whoever routes without an error gets 1.08 and 1.18 x more, 1.3 and 1.5 x
the best router. By work alone 12.5/s of mixed-lengths can be served, half of it in time.
Who is late: at 10.2/s nobody waits in four fifths of the time, and half of the late came in 7 of 120 windows of two seconds. Of the late 27 % on mixed-lengths and
68 % on agent-tools are long prompts, which wait for a lane (in the middle 2.1 and 2.7 s); short ones wait 170 ms and share steps for 300. On agent-tools 28 %
have their first token in time and then 0.1 s and more a token, as an answer of five tokens falls into one burst. Tried on that, six seeds, in time % instead of
96.7 and 92.4 (mixed-lengths, 9.6 and 10.6/s), 96.1 and 93.0 (agent-tools, 7.4 and 8.0/s):
long prompts the shortest first 96.8 and 92.3, 96.5 and 94.2: something beyond the goal on one load, and the longest would pay; everybody as much later as
it takes 96.8 and 92.4, 96.3 and 93.4; behind all others as soon as one cannot be in time 96.0 and 92.9 (agent-tools); two lanes an engine 88.9 and 83.1
(agent-tools); a quarter of the bound beside a long prompt 96.1 and 93.2 (agent-tools), three quarters 96.5 and 91.9, 96.5 and 93.0; three quarters of the
prefill bound 96.2 and 91.6, one and a half 96.3 and 92.3 (mixed-lengths); memory counted in the score as sequences are 96.3 and 92.4, 96.1 and 93.1; what a
single engine has counted once 96.0 and 93.4, twice 96.2 and 93.0 instead of four times (agent-tools); true lengths of answers 96.6 and 92.3 (three seeds, beside
96.7 and 92.3). Differences below a point are chance. Room given back shortly before the first token, so that no step runs half empty, had 71 % where it was 94.""",
    "E2": """Limits are those of one engine four times as fast, with one cache and nothing to choose, under the same core.
chat-trace ends for everybody with its long prompts, nearly all of 4,090 tokens: with the cap that is eight steps, 909 ms are promised, and so a step may take 114 ms
where a full one takes 161. Fuller steps help short prompts and cost long ones. The search moves by 2.8 %; by 1 % the core holds up to 21.8 requests/s, smg_least_load
to 21.2, sgl_cache_aware to 21.0: 1.03 x. Half of the late come in 3 of 88 windows of two seconds, with 37,000 to 55,000 prompt tokens/s, where four engines
compute 51,000. The limit is 24.2/s, 1.14 times the best router. Tried, at 22.0/s in time % of all, short and long (as it is 95.3 to 95.5, 95.4 to 95.7, 94.4 to 95.0):

- beside a prompt that is outstanding others of up to one step see at most three times the cap of it: 96.9, 97.5, 94.4; in six windows of the recorded hour 97.6
  instead of 96.3 (+1.3, 0.1 to 2.4), on mixed-lengths at 9.6/s +0.3 (-0.1 to +0.8), on agent-tools at 7.4/s -0.2 (-0.8 to +0.5). The highest rate stays: long ones decide.
- with it, prompts beyond the cap earlier in their turn, by half of what is beyond it: up to 22.2 to 22.9/s (1.04 x to 1.08 x); elsewhere no change beyond chance.
- lanes from 2,048 tokens on instead of 4,096: 98.0, 99.0, 93.4. Hardly any lanes (from 9,999 on): 96.0, 96.1, 95.9 and up to 22.3/s, 1.05 x; but from 8,192 on
  mixed-lengths has 93.9 instead of 94.9 at 9.9/s, agent-tools 91.2 instead of 95.1 at 7.8/s. `long_prompt_tokens` is there for such a load.
- twice the prefill bound: 95.3, 95.3, 95.1. Prompts of up to 512 tokens before others wherever a step has room: 95.8, 96.2, 94.3.

None is the default. The window has 680 long prompts, so that a step of the search is a matter of five of them, and whatever moves the rate by that much on this recording
does as much harm elsewhere, or gains nothing there that can be told from chance.

agents-trace: the search moves by single users, of sessions that answer to what they are given, so each point is one draw. Six of them, 48 to 56 users: the core has 93.6 % in
time on average, sgl_cache_aware 96.3; it finds 85 % of the ideal hits, that one 96. 40 of 613 prompts were moved in the run looked into, 28 by the score and 12 by bounds on lanes,
prefill and memory: 0.85 of the 5.2 million tokens computed; 2.1 million were new. What one engine alone has counted 12 times instead of 3: 94.7 % in time, 90 % of the hits; 40 times
95.3 and 92; and with all of the time left to wait for a warm engine 95.6. A weight that grows with the load (rho / (1 - rho), at least 3) changed nothing. Not the default:
12 times is -0.4 points (-1.4 to +0.6) on agent-tools at 7.4/s, -0.3 (-1.3 to +0.6) on long-chat at 3.1/s, -0.2 (-0.9 to +0.6) on mixed-lengths at 9.6/s. The limit is 64 users
(55: 99.1 %, 65: 94.9 %, 80: 42.1 %), 1.16 times the 55 of the best router: 55 users with 33,000 tokens each are 1.8 million, and all caches together hold 2.1. 1.25 x does not fit,
whoever routes.

reasoning-trace has no prefixes; its answers of up to 11,000 tokens fill the engines' memory. Until an answer counted with what many of its kind hold
at the same time, a quarter of that memory was kept for nobody and long prompts waited up to 58 s: 0.89 x. What is left is the one lane of each engine:
beside so many answers a step takes 55 ms, so with the cap of 512 tokens a step a prompt of 20,000 holds it for two seconds and more. Beyond its highest rate the core still has 95.8 and
94.9 % in time (8.6 and 9.1/s; sgl_cache_aware 87.7 and 79.2), but 77 and 72 % of the long ones, and their queue grows: that ends the search, and breaks what long ones must
not lose. Tried, at 8.2, 8.6 and 9.1/s (as it is 97.7, 95.8, 94.9): two lanes an engine 97.1, 93.0, 90.2 (before late first tokens were waited for they gained 0.7 points at 8.2/s);
more of the memory given out, or all without a bound: a point, and four, less ([what answers hold](policies/saturation.md#what-answers-hold)). The limit is below 8.4/s, no more than the best router has (8.2/s: 96.7 %;
8.4/s: 94.5 % of the short; 8.6/s: 92.9 %). 1.05 x is not there to be had with this cap.""",
    "E3": """At these rates short prompts hardly wait with B8 either: 475 and 758 ms at the 99th percentile (the core's wait 413 and 548), where one full step
of an engine takes 161 ms. The engines' long-prefill cap, on in every arm, does already what a lane does: a long prompt cannot own a step. And B8 counts
exactly what no router outside can see. Tried, seeds 7 to 11, p99 of short ones at both rates in ms and beside B8's (as it is 432 and 533, 0.84 x and 0.68 x), long ones in time % (99.1 and 97.3):
lanes from 2,048 tokens on 413 and 491, 0.81 x and 0.63 x, 98.9 and 96.3; lanes on three of four engines 393 and 466, 0.77 x and 0.59 x, 97.4 and 91.8; a quarter of the prefill
bound beside a long prompt instead of half 415 and 523, 98.8 and 97.5; three quarters of the prefill bound 442 and 519, 98.7 and 96.9. So at B8's highest rate 0.67 x is a matter of settings
(`long_prompt_tokens: 2048`); they are not the default because long ones pay near the core's highest rate (seeds 7 to 9, 9.9/s: 87.6 instead of 89.9 % in time; agent-tools at 7.8/s
93.9 instead of 95.1 % of all). The limit: one engine
four times as fast, with one cache, has 284 ms at 0.8 x, and at 1 x, where bursts fill it as well, 1,020.""",
    "E4": """B8 counts exactly, and of four engines one is nearly always without a long prompt: its short ones wait 621 ms at the 99th percentile, not the
seconds behind a router that counts requests. 2.5 times less would be 250 ms, and one full step takes 161 ms. Before lanes had room for chance
(docs/policies/pools-and-lanes.md) it was 0.68 x and, at B8's highest rate, without end: with fewer lanes long prompts waited beside idle engines, and
with one root of the lanes held instead of one and a half short ones gain a little more there and long ones on SGLang's engines lose. Tried since, seeds 7 to 9 (299 and 579 ms, B8 696 and 1,225): lanes from 2,048
tokens on 460 and 540 ms, as more prompts then need one. All engines taking long ones: 722 ms, as with B8. The limit is the engine's: one four times as fast has 90 and 84 % of the short
ones in time where four have 99.7 and 98.1, because without a cap one long prompt owns every step there is. Separate engines or the cap (E3: 413 ms at a load that is 0.9/s higher) are what helps.""",
    "E6": """97.1 % are in time, 97.2 by arrival. Order acts on who waits in the gateway, and here 5 of 100 do: nearly all that is late by one order is late by the other. The
plan's own sketch had put order between -0.6 and +3 points. Tried, four seeds, beside arrival (97.4 %): as it is -0.0 points (-0.8 to +0.7), by the moment alone (`edf`) -0.2, in steps of half a second instead of
50 ms -0.1, the cheapest first among short ones -0.0, all within chance; in the gateway's queue that is the limit of what order does at this rate. On agent-tools at 7.4/s, where more wait, it is worth 1.2
points (0.3 to 2.1).""",
    "E7": """agent-tools, beyond the highest rate: it is the order by length itself, not what is wrong with it, that takes 9 % at the 99th percentile (true, learned and
shuffled lengths 3.3 s, by arrival 3.05), and has a point more in time. Tried, four seeds (by arrival 3.07 s and 96.1 % in time, by length 3.37 and 97.4): by the moment
alone 3.28 and 97.3, in steps of half a second 3.37 and 96.8, late ones stepping back after three promises instead of one 3.26 and 97.0. Whoever goes ahead of a long prompt makes that one later, and those are the 99th
percentile: none that looks at what is due came to 1.05 x, and each has more in time. reasoning-trace is one recording, so one seed. Where memory is what lacks, stand-ins are worse than what is learned, the oracle more
than any (79.4 and 70.3 % in time at and beyond the highest rate, learned 96.0 and 94.1): each names one length for an answer, and an answer of
which one length is expected is reserved in full from its first token on, though it holds half of that on average. What is learned is a
distribution, and reserves the most that many such answers hold together (docs/policies/saturation.md). So what shuffled lengths cost there is
memory kept for nobody, for which long prompts wait, and not a wrong order. An answer that counts with its mean, or half of it, was tried too (there): 87.7 and 93.3 % at
9.8/s where it is 96.2. The limit of a stand-in is that it names one length; with what is learned, the default, the cells that it shares with arrival are met.""",
    "E8": """long-chat: 83 % is two points below the bound, and no other arm finds more than 73 %; before what a single engine has counted four times it was 75 %.
The four caches, 534,000 tokens each, turn over in a few minutes, and the next turn of a conversation often comes later; an unlimited cache
would still have it. What cannot be found is computed, so the median is 0.64 times that of least requests and not 0.60.
agent-tools: its few shared heads are on every engine after a minute, so least requests finds 96 % of the ideal as well, and affinity has
nothing left to save at the median (least requests 210 ms, the core 187, least prefill, which holds nobody back, 169; seeds 7 to 9).
Tried, seeds 7 to 11, long-chat at 1.9/s (87 % of the ideal, median 401 ms, least requests 638): what a single engine has counted 6 times instead of 3 89 % and 399 ms, 12 times 90 % and 397; a larger
`max_load_ratio` (2) changes nothing. 6 times would just about meet the bound, and costs agent-tools 0.5 points in time at 7.4/s (-1.1 to +0.2); 12 times see E2. The limit is memory: one engine with all four caches
in one finds 91 % there. The median does not follow: three points more of hits are 4 ms of it, the rest is what is new.""",
    "E13a": """`admit all` is the same core: it sorts by class and by time left, so the urgent go first and only the rest waits. What refusals could save,
order has saved: at 1.5 times the load they are never needed, at 2 times they are worth 5 %. Critical requests miss their 400 ms because
nothing that runs is interrupted: they wait for the step under way and for what was sent before them (p50 229 ms, p99 738 ms). Tried at 1.5 times, seeds
7 to 9 (critical 95.1 % in time, 36.6 good answers/s): ceilings of 0.1 for standard and 0.05 for batch give 99.6 % and 18.1/s, as fuller engines are what serves
standard; 0.2 and 0.05 98.0 % and 17.9/s. Ceilings of 0.5 and 0.1 change nothing: steps are full before places are. Steps of 1,024 tokens instead
of 2,048 85.5 % and 14.4/s: overload is of prompts, and smaller steps compute fewer of them. The 99 % and the 1.3 times exclude each other here.""",
    "E13b": """As E13a: in 20 s of overload nobody's patience ends, so that nobody has to be refused, and order alone keeps the urgent in time. B8 has
no queue to sort; at 1.2 times the scenario's rate the peak is too short to cost it a third of its good answers. The limit is arithmetic: 99.7 and 99.3 % are in time, so nothing that refuses can have more than 1.003 and 1.007 times as many, and where B8 has 85.1 % nobody can have more than 1.17
times its good answers. The 0.2 points that critical ones lack at 1.6 times can be had, seeds 7 to 9 (98.7 %, p99 of all 28 s): half the prefill bound (`max_prefill_tokens: 1024`) 99.8 %, 32 s; ceilings of 0.1 for standard and
0.05 for batch 99.8 %, 49 s. Neither is the default: near the highest rate of mixed-lengths three quarters of the bound cost 0.5 points in time (E1), and E13a says what ceilings cost when the load stays.""",
    "E14": """The margin is a quantile of the last 128 ratios of truth to expectation, led by what was covered (adaptive conformal inference). As the
plain p90 it followed behind while waits grew: near the highest rates of mixed-lengths 86 % were covered.""",
    "E18": """agent-tools was 0.82 x (0.54 to 1.24). Most of the loss was lanes, not the score: engines without a prefill cap had one lane for the whole
fleet in their first minute and at most three of four after it, while a third of the requests, four fifths of the work, is long; those waited for a lane beside idle
engines. With lanes as they are now the core has 97.5 % in time where it had 93.5, and 95.7 where it had 90.4. It still is behind B8 and B9
there (98.0 and 96.8 %), and beyond its highest rate the agent with the 6k head fails: what a single engine has counts four times, so the busiest engine
got 1.49 times the mean (1.28 since blocks grow with depth: 97.1 and 95.3 % in time). Searched with ten seeds: as it is 2.35 requests/s, with rho / (1 - rho) as measured instead of three 2.60, lmetric 2.78,
least_requests 2.08. Left as it is because long-chat on vLLM's engines then finds 77 % of its hits instead of 82 (docs/policies/affinity.md).""",
    "E19": """By its share the victim is first in turn whenever it waits; what it waits for is what runs: steps that are full of the aggressor's prompts and answers that
hold their places. Alone it has idle engines. In front of routers without turns nearly all of its requests are late. A larger weight changes nothing
(ten times: 810 ms): it is first already. What bounds the aggressor does, tried on seeds 7 to 9 (victim alone: 348 ms at the 99th percentile, 73 at the
median). Slots (`limits.max_concurrency`), which keep steps short: 200 of them 439 ms, 100 406, 50 382 (1.10 x), 25 360; the victim has 99.9 % in time with
each, and tokens/s fall from 8,510 to 6,224, 4,177, 2,652 and 1,688. A rate of half of what it sends (`limits.rpm` 1200): 587 ms and 95.6 %, and of the
aggressor's own requests 43 % are in time, where it has 3 % without. So 1.1 x is bought with two thirds of the fleet; fairness of
turns alone cannot have it, as nothing that runs is interrupted.""",
}
