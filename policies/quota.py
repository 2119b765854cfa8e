"""May this request be paid for? All of it is held before it waits, over every limit at once, or nothing is (tenancy.md 3).

What is held is an estimate: of the prompt by its bytes, of the answer by what the client allows. When the request has
ended, the difference to what it really took is given back, or owed. A refused request changes no meter.
"""

from math import ceil, inf
from typing import Final

from policies.decisions import Reason, Shortage
from policies.state.blocks import Block
from policies.state.claims import Charge, Claim, Terms
from policies.state.meters import MICRO, MINUTE_S, Meter
from policies.state.standing import Level, Standing
from policies.types import InferenceRequest, Message

UNIT: Final = MICRO * MINUTE_S  # as `over` counts
MESSAGE_TOKENS: Final = 4  # of role and marks around each message
MEDIA_BYTES: Final = 4096  # of `text_bytes` that stand for a part, which counts by itself here


class Denied(Message):
    """A limit is in the way. `wait_s` infinite: waiting is no use."""

    reason: Reason
    wait_s: float
    shortage: Shortage | None


class Short:
    """Of these blocks less is here than the request needs, and the store may have more (tenancy.md 8.1)."""

    __slots__ = ("needs",)

    def __init__(self, needs: list[tuple[Block, int]]) -> None:
        self.needs = needs


def standing(terms: Terms, now: float, *, apart: bool) -> Standing:
    """What a client of these terms is told with every answer. Which limit of several replicas is the tightest is judged as
    of the last look.

    `apart`: of each metric one level; else one of requests, and of all that counts tokens the tightest.
    """
    tariff = terms.tariff
    if tariff is None or not tariff.idle(now):
        return _standing(terms, now, apart)
    found = terms.idle_apart if apart else terms.idle
    if found is None:
        found = Standing(_standing(terms, now, apart).levels, lasting=True)
        if apart:
            terms.idle_apart = found
        else:
            terms.idle = found
    return found


def _standing(terms: Terms, now: float, apart: bool) -> Standing:
    levels: dict[str, Level] = {}
    now_us = int(now * MICRO)
    tariff = terms.tariff
    for meters in terms.by_metric if apart else terms.by_kind:
        if tariff is None:
            meter = meters[0] if len(meters) == 1 else min(meters, key=_share_left)
            meter.look(now)
            capacity = meter.capacity
            left = max(0, capacity - meter.used + meter.apart) // MICRO
            levels[meter.rule.metric] = Level(meter.name, capacity // MICRO, left, meter.empty_s())
            continue
        tightest, most, used = meters[0], 0.0, 0
        for meter in meters:  # that of which the largest part is used
            over = meter.over - (now_us - meter.seen_us) * meter.rate
            if over > 0 and (part := over / meter.full) > most:
                tightest, most, used = meter, part, over
        units, full = tightest.units, tightest.full
        if not used:
            levels[tightest.rule.metric] = Level(tightest.name, units, units, 0.0)
        else:
            left = (full - used) // UNIT if used < full else 0
            levels[tightest.rule.metric] = Level(tightest.name, units, left, -(-used // tightest.rate) / MICRO)
    if not terms.budgets:
        return Standing(levels)
    if tariff is not None:
        return Standing(levels, tariff.soft(now))
    return Standing(levels, tuple([each.rule.metric for each in terms.budgets if _is_soft(each, now)]))


def _share_left(meter: Meter) -> float:
    return (meter.capacity - meter.used + meter.apart) / meter.capacity


def _is_soft(meter: Meter, now: float) -> bool:
    meter.look(now)
    return meter.used - meter.apart >= meter.soft


def reserve(terms: Terms, request: InferenceRequest, now: float, due_s: float = inf) -> Claim | Denied | Short:
    """Hold what the request may need, of all its limits. From `due_s` on nothing is waited for."""
    claim = Claim(terms)
    if not terms.charges:
        return claim
    if terms.counts_tokens:
        claim.input_tokens = input_tokens(terms, request)
        claim.output_tokens = output_tokens(terms, request, claim.input_tokens)
    tariff = terms.tariff
    if tariff is None or not tariff.take(claim.input_tokens, claim.output_tokens, now):
        claim.sequences = max(1, request.sequences)
        return _with_care(claim, now, due_s)
    claim.tariff, claim.periods = tariff, tariff.periods
    return claim


def _with_care(claim: Claim, now: float, due_s: float) -> Claim | Denied | Short:
    """The same where something is in the way: look at everything before anything is held."""
    terms = claim.terms
    for charge in terms.charges:
        need = charge.flat or charge.per_input * claim.input_tokens + charge.per_output * claim.output_tokens
        if terms.reserve.oversize == "clamp":
            need = min(need, charge.meter.capacity)
        claim.open.append((charge, need, charge.meter.look(now)))
    missing = [each for each in claim.open if each[1] > each[0].meter.capacity - each[0].meter.used]
    if missing:
        denied = _lend(claim, missing, now, due_s) if terms.without_store else _deny(claim, missing)
        if denied is not None:
            return denied
    for charge, need, _ in claim.open:
        charge.meter.reserve(need)
    return claim


def _lend(claim: Claim, missing: list[tuple[Charge, int, int]], now: float, due_s: float) -> Denied | Short | None:
    """What is missing may be with the store: wait for that; or do without, as `on_store_down` says (tenancy.md 8.5)."""
    needs = _undecided(missing, now)
    if len(needs) == len(missing):
        if now < due_s:
            return Short(needs)
        for block, _ in needs:
            block.go_alone()
        missing = [each for each in missing if each[1] > each[0].meter.capacity - each[0].meter.used]
        if not missing:
            return None
    elif needs:
        asked = [block for block, _ in needs]
        missing = [each for each in missing if each[0].meter not in asked]
    alone = all(isinstance(each[0].meter, Block) and each[0].meter.alone for each in missing)
    if alone and claim.terms.without_store == "open":
        return None
    denied = _deny(claim, missing)
    if denied is not None and alone and claim.terms.without_store == "closed":
        return Denied(reason=Reason.QUOTA_STORE, wait_s=1.0, shortage=None)
    return denied


def _undecided(missing: list[tuple[Charge, int, int]], now: float) -> list[tuple[Block, int]]:
    found = []
    for charge, need, _ in missing:
        meter = charge.meter
        if isinstance(meter, Block) and meter.undecided(need, now):
            found.append((meter, need))
    return found


def _deny(claim: Claim, missing: list[tuple[Charge, int, int]]) -> Denied | None:
    """Refuse it; or, where the tenant's limits are only tried out, count that and leave them as they are."""
    shared = [each for each in missing if not each[0].own]
    shadow = claim.terms.shadow and not shared
    charge, need, _ = max(shared or missing, key=_hopelessness)
    if shadow:
        charge.meter.denied_shadow += 1
        claim.open = [each for each in claim.open if not each[0].own]
        return None
    charge.meter.denied += 1
    return _denied(claim, charge, need)


def _hopelessness(missing: tuple[Charge, int, int]) -> tuple[float, float]:
    charge, need, _ = missing
    never = need - charge.meter.capacity
    return (max(0, never), charge.meter.wait_s(need))


def _denied(claim: Claim, charge: Charge, need: int) -> Denied:
    meter = charge.meter
    shortage = Shortage(
        scope=meter.name,
        limit=meter.capacity // MICRO,
        left=max(0, meter.capacity - meter.used + meter.apart) // MICRO,
        need=-(-need // MICRO),
        fits_output=_fits_output(claim),
    )
    if need > meter.capacity:
        return Denied(reason=Reason.EXCEEDS_LIMIT, wait_s=inf, shortage=shortage)
    if meter.is_budget:
        return Denied(reason=Reason.BUDGET, wait_s=inf, shortage=shortage)
    reason = Reason.QUOTA_REQUESTS if charge.flat else Reason.QUOTA_TOKENS
    return Denied(reason=reason, wait_s=meter.wait_s(need), shortage=shortage)


def _fits_output(claim: Claim) -> int:
    """The most that one answer may be allowed for all limits to hold it when they are empty. 0: none is short enough."""
    most = inf
    for charge, need, _ in claim.open:
        room = charge.meter.capacity - charge.per_input * claim.input_tokens
        if charge.per_output:
            most = min(most, room // (charge.per_output * claim.sequences))
        elif need > charge.meter.capacity:
            return 0
    return int(max(0, most)) if most < inf else 0


def input_tokens(terms: Terms, request: InferenceRequest) -> int:
    """What is reserved for a prompt: all of it as if nothing were cached, and rather too much."""
    media = request.media * terms.reserve.media_tokens
    if not request.text_bytes:
        return request.prompt_tokens + media
    text_bytes = max(0, request.text_bytes - request.media * MEDIA_BYTES)
    return ceil(text_bytes / terms.density.bytes_per_token) + MESSAGE_TOKENS * request.messages + media


def output_tokens(terms: Terms, request: InferenceRequest, prompt_tokens: int) -> int:
    """What is reserved for the answers."""
    most = request.max_output_tokens
    if not most:
        return 0
    if not request.names_most:
        most = min(most, terms.reserve.output_default)
    if terms.context_tokens:
        most = min(most, terms.context_tokens - prompt_tokens)
    most = max(1, most) * max(1, request.sequences)
    if not request.names_most and terms.most_unnamed is not None:
        most = max(1, min(most, terms.most_unnamed))
    return most
