"""Can a run be trusted? The rules V1 to V10 (loadgen.md 8.2), each a function of what was seen.

A rule that is broken makes the run INVALID whatever its latencies: a client that was late, a machine that was busy or
a cache that was warm from elsewhere is measured then, not the server. Rules are loosened only by name.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from loadgen.report.parts import Rule, State, Validity
from loadgen.report.record import REJECTED, Outcome, Sample
from loadgen.report.stats import quantile

LAG_MS, LAG_SHARE = 10.0, 0.05  # V1: that, or this share of the least TTFT limit
IGNORED_MS = 1.0  # timers have this granularity
SENT_SHARE, SENT_IN_BLOCK, BLOCK_S = 0.99, 0.95, 10.0  # V2
LOOP_LAG_MS = 10.0  # V3
CPU_SHARE = 0.85  # V4
CACHED_SHARE = 0.01  # V6
LENGTH_SHARE, AS_PLANNED = 0.01, 0.9  # V7
SUFFICIENT = 100  # V8: requests of a cell
EMIT_LAG_MS = 5.0  # V9


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one side over a whole run, warm-up included: requests it knows of, tokens of those completed."""

    requests: int
    prompt_tokens: int
    output_tokens: int


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """What engines count of all prompts that came in a run: their tokens, and those of them that came from a cache."""

    prompt_tokens: int
    cached_tokens: int


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the rules look at. None: not known, and the rule cannot be judged.

    `samples` are all requests of the run, `probes` those of the isolation probe. `closed`: some of the load waits for
    answers, that of `closed_tenants` where they are known. `loop_lag_ms` is a p99, `cpu_share` the largest of any worker over 5 s, `local_failures` what the machine
    refused, by name of the error. `template_tokens` of each prompt a server may know before the run. `largest_cell`:
    requests of it. `server`: totals of gateways; `unreconciled` says why they are not known though they were scraped.
    `engines`: what these say themselves, all that were scraped together.
    """

    samples: Sequence[Sample]
    probes: Sequence[Sample] = ()
    window_s: tuple[float, float]
    least_ttft_ms: float
    closed: bool = False
    closed_tenants: frozenset[str] = frozenset()
    loop_lag_ms: float | None = None
    cpu_share: float | None = None
    local_failures: dict[str, int] = {}
    template_tokens: int = 0
    controlled: bool = False
    largest_cell: int = SUFFICIENT
    emit_lag_ms: float | None = None
    server: Counted | None = None
    unreconciled: str = ""
    engines: Prompts | None = None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule has to say."""

    value: float | None
    limit: float | None
    words: str
    broken: bool


_NO_HEALTH = "what the client says of itself was not written"
_NO_CACHED = (
    "no answer says how much of its prompt came from a cache, so nothing tells whether that was warm from elsewhere "
    "(vLLM has --enable-prompt-tokens-details, SGLang --enable-cache-report; or --scrape every engine)"
)


def judged(evidence: Evidence, allowed: Sequence[str]) -> Validity:
    """Every rule that can be judged, and why others cannot be."""
    said = {name: rule(evidence) for name, rule in RULES.items()}
    return Validity(
        rules=tuple(_rule(name, one, name in allowed) for name, one in said.items() if isinstance(one, Found)),
        unjudged={name: one for name, one in said.items() if isinstance(one, str)},
    )


def lag_limit_ms(least_ttft_ms: float) -> float:
    """How late requests may go out, at p99."""
    return max(IGNORED_MS, min(LAG_MS, LAG_SHARE * least_ttft_ms))


def _rule(name: str, said: Found, allowed: bool) -> Rule:
    state = (State.ALLOWED if allowed else State.BREACH) if said.broken else State.OK
    return Rule(id=name, state=state, value=said.value, limit=said.limit, words=said.words)


def _send_lag(seen: Evidence) -> Found:
    lags = [one.lag_ms for one in _measured(seen) if one.sent_s > 0]
    late_ms = quantile(lags, 0.99) or 0.0
    return _at_most("send lag p99, ms", late_ms, lag_limit_ms(seen.least_ttft_ms))


def _sent(seen: Evidence) -> Found | str:
    if seen.closed and not seen.closed_tenants:
        return "all of the load waits for answers"
    due = [one for one in _measured(seen) if one.turn == 0 and one.tenant not in seen.closed_tenants]
    sent = sum(one.sent_s > 0 for one in due)
    share = sent / len(due) if due else 1.0
    if share < SENT_SHARE:
        words = f"{sent:,} of {len(due):,} requests were sent"
        return Found(value=share, limit=SENT_SHARE, words=words, broken=True)
    worst, at_s = _worst_block(due, seen.window_s[0], lag_limit_ms(seen.least_ttft_ms) / 1e3)
    if worst < SENT_IN_BLOCK:
        words = f"share of requests sent in time in the 10 s from {at_s:g} s on"
        return Found(value=worst, limit=SENT_IN_BLOCK, words=words, broken=True)
    return Found(value=share, limit=SENT_SHARE, words="share of requests that were sent", broken=False)


def _worst_block(due: Sequence[Sample], start_s: float, slack_s: float) -> tuple[float, float]:
    """The smallest share that went out before its 10 s were over, and where these begin."""
    planned, in_time = Counter[int](), Counter[int]()
    for one in due:
        block = int((one.sched_s - start_s) / BLOCK_S)
        planned[block] += 1
        in_time[block] += 0 < one.sent_s <= start_s + (block + 1) * BLOCK_S + slack_s
    shares = [(in_time[block] / number, start_s + block * BLOCK_S) for block, number in planned.items()]
    return min(shares, default=(1.0, start_s))


def _loop_lag(seen: Evidence) -> Found | str:
    if seen.loop_lag_ms is None:
        return _NO_HEALTH
    return _at_most("lag of the client's event loop p99, ms", seen.loop_lag_ms, LOOP_LAG_MS)


def _cpu(seen: Evidence) -> Found | str:
    if seen.cpu_share is None:
        return _NO_HEALTH
    words = "share of a core that the client's busiest worker used over 5 s"
    more = "; take more --workers" if seen.cpu_share > CPU_SHARE else ""
    return _at_most(words + more, seen.cpu_share, CPU_SHARE)


def _local(seen: Evidence) -> Found:
    told = [f"{number:,} x {what}" for what, number in sorted(seen.local_failures.items())]
    dropped = sum(one.outcome is Outcome.DROPPED for one in seen.samples)
    if dropped:
        told.append(f"{dropped:,} met the cap on open requests (--max-open) and were not sent")
    failed = float(sum(seen.local_failures.values()) + dropped)
    return _at_most("failures of this machine" + (f": {', '.join(told)}" if told else ""), failed, 0.0)


def _warm(seen: Evidence) -> Found | str:
    counted = [one for one in _measured(seen) if one.prompt_tokens is not None]
    known = [one for one in counted if one.cached_tokens is not None]
    if not known and seen.engines is not None:
        return _warm_engines(seen, seen.engines)
    if not known:
        return _NO_CACHED if counted else "no answer said how many tokens its prompt had"
    told = Prompts(
        prompt_tokens=sum(one.prompt_tokens or 0 for one in known),
        cached_tokens=sum(one.cached_tokens or 0 for one in known),
    )
    of = f", of the {len(known):,} of {len(counted):,} answers that say so" if len(known) < len(counted) else ""
    return _cached(told, known, seen.template_tokens, of)


def _warm_engines(seen: Evidence, told: Prompts) -> Found | str:
    """The same of the whole run, if what engines count is this run and no other load, and all of it."""
    sent = [one for one in (*seen.samples, *seen.probes) if one.sent_s > 0]
    most = sum(map(_prompt, sent))
    least = sum(_prompt(one) for one in sent if one.outcome is Outcome.OK)
    if not least * (1 - CACHED_SHARE) <= told.prompt_tokens <= most * (1 + CACHED_SHARE):
        return (
            "no answer says how much of its prompt came from a cache, and engines do not say it of this run alone: they "
            f"counted {told.prompt_tokens:,} prompt tokens, and this run had {most:,}"
        )
    return _cached(told, sent, seen.template_tokens, ", as engines count it over the whole run")


def _cached(told: Prompts, of: Sequence[Sample], template_tokens: int, where: str) -> Found:
    """Plans are in tokens of the simulated engine; a tokenizer that takes more of them does so in what is shared too."""

    def ideal(one: Sample) -> float:
        longer = (_prompt(one) - template_tokens) / max(1, one.input_tokens)
        return one.ideal_tokens * max(1.0, longer) + template_tokens

    most = sum(map(ideal, of)) + CACHED_SHARE * told.prompt_tokens
    broken = told.cached_tokens > most
    why = ", more than this run can have put there: the cache was warm from elsewhere" if broken else ""
    return Found(value=told.cached_tokens, limit=most, words=f"prompt tokens from a cache{where}{why}", broken=broken)


def _prompt(sample: Sample) -> int:
    """As the server counted it, else as planned."""
    return sample.input_tokens if sample.prompt_tokens is None else sample.prompt_tokens


def _lengths(seen: Evidence) -> Found | str:
    known = [one for one in _measured(seen) if one.outcome is Outcome.OK and one.planned_output > 0]
    if not seen.controlled or not known:
        return "no request succeeded" if seen.controlled else "nothing sets the length of an answer (--length-control)"
    share = sum(abs(one.tokens - one.planned_output) <= LENGTH_SHARE * one.planned_output for one in known) / len(known)
    words = "share of answers within 1 % of their planned length"
    return Found(value=share, limit=AS_PLANNED, words=words, broken=share < AS_PLANNED)


def _sufficient(seen: Evidence) -> Found:
    broken = seen.largest_cell < SUFFICIENT
    words = "requests of the largest cell" + ("; measure longer, or at a higher rate" if broken else "")
    return Found(value=seen.largest_cell, limit=SUFFICIENT, words=words, broken=broken)


def _emit_lag(seen: Evidence) -> Found | None:
    if seen.emit_lag_ms is None:
        return None
    return _at_most("simulated engines gave tokens out late, p99 at most, ms", seen.emit_lag_ms, EMIT_LAG_MS)


def _reconciled(seen: Evidence) -> Found | str | None:
    if seen.server is None:
        return seen.unreconciled or None
    every = (*seen.samples, *seen.probes)
    least, more = counted(every), _unsettled(every)
    differing = []
    for name in Counted.__struct_fields__:
        theirs, ours, beyond = getattr(seen.server, name), getattr(least, name), getattr(more, name)
        if not ours <= theirs <= ours + beyond:
            upto = f" to {ours + beyond:,}" if beyond else ""
            differing.append(f"{theirs:,} {name.replace('_', ' ')} there, {ours:,}{upto} here")
    words = "totals that differ from the gateway's" + (f": {', '.join(differing)}" if differing else "")
    return _at_most(words, float(len(differing)), 0.0)


RULES: dict[str, Callable[[Evidence], Found | str | None]] = {
    "V1": _send_lag,
    "V2": _sent,
    "V3": _loop_lag,
    "V4": _cpu,
    "V5": _local,
    "V6": _warm,
    "V7": _lengths,
    "V8": _sufficient,
    "V9": _emit_lag,
    "V10": _reconciled,
}


def counted(samples: Sequence[Sample]) -> Counted:
    """The client's own totals: requests that the server answered or began to, and the tokens of those completed."""
    done = [one for one in samples if one.outcome is Outcome.OK]
    return Counted(
        requests=sum(one.head_s > 0 for one in samples),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in done),
        output_tokens=sum(one.tokens for one in done),
    )


def _unsettled(samples: Sequence[Sample]) -> Counted:
    """What a server may have counted beyond `counted`: tries before the last, requests that were left before they were
    answered, and for those that got no usage the estimate they are charged by."""
    vague = [one for one in samples if one.sent_s > 0 and one.outcome not in (Outcome.OK, *REJECTED)]
    return Counted(
        requests=sum(one.tries - (one.head_s > 0) for one in samples if one.sent_s > 0),
        prompt_tokens=sum(2 * one.input_tokens for one in vague),
        output_tokens=sum(max(one.token_events, one.planned_output) for one in vague),
    )


def _at_most(words: str, value: float, limit: float) -> Found:
    return Found(value=value, limit=limit, words=words, broken=value > limit)


def _measured(seen: Evidence) -> Iterator[Sample]:
    return (one for one in seen.samples if one.measured)
