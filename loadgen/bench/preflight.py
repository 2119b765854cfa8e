"""Before anything is measured: does the server answer every tenant, how long may a prompt be, what sets answer lengths?

A failure names the tenant and what to do, and ends the command with 4. Nothing asked here shares a prompt with the run.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from loadgen.bench.exits import BenchError, Exit
from loadgen.bench.facts import Facts
from loadgen.bench.keys import Keys
from loadgen.bench.lengths import PLANNED_MARKS, Sizes, chosen_control, measured_sizes
from loadgen.client import Api, LengthControl, Question, Reply, Target, ask, fetch
from loadgen.report.record import REJECTED, Outcome
from loadgen.workload.bodies import DEFAULT_MAX_TOKENS, TELLING
from loadgen.workload.prompts import Block, Prose

AT_ONCE = 8
BUSY_TRIES, BUSY_WAIT_S = 5, 1.0  # a server that is full for a moment is there

Targets = Mapping[str, Sequence[Target]]
"""By tenant."""

Check = Callable[[str, Target], Awaitable[None]]
"""Asks the server of a tenant. BenchError."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Where load shall go: base URLs by tenant, "" for all others; `model` None: what the server says it serves."""

    urls: dict[str, tuple[str, ...]]
    model: str | None
    api: Api
    control: LengthControl | None  # None: whatever works
    timeout_s: float
    connect_s: float
    tenants: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What preflight found. `targets` by tenant; `context_tokens` as the server tells it, where it does."""

    targets: dict[str, tuple[Target, ...]]
    control: LengthControl
    sizes: Sizes
    context_tokens: int | None
    warnings: tuple[str, ...]


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


async def preflight(facts: Facts, asked: Asked, keys: Keys) -> Ready:
    """Ask every tenant's server. BenchError with the first thing that would spoil the run."""
    return await _Preflight(facts, asked, keys).run()


class _Preflight:
    def __init__(self, facts: Facts, asked: Asked, keys: Keys) -> None:
        self._longest = facts.tenants
        self._asked = asked
        self._keys = keys
        self._prose = Prose(secrets.token_hex(8))
        self._tenants = asked.tenants
        self._cards: dict[str, list[_Card]] = {}

    async def run(self) -> Ready:
        targets = {tenant: self._targets(tenant, self._asked.model or "") for tenant in self._tenants}
        await self._each(targets, self._models)
        model = self._asked.model or self._only_model()
        targets = {tenant: self._targets(tenant, model) for tenant in self._tenants}
        await self._each(targets, self._tiny)
        first = targets[self._tenants[0]][0]
        control = self._asked.control or await chosen_control(first, self._options)
        sizes = await measured_sizes(
            first, self._prose, max(one.input_tokens for one in self._longest.values()), self._options
        )
        context = self._context(model)
        self._check_context(context, sizes, control)
        await self._each(self._longest_askers(targets), self._largest)
        return Ready(
            targets=targets,
            control=control,
            sizes=sizes,
            context_tokens=context,
            warnings=tuple(_warnings(control, sizes)),
        )

    @property
    def _options(self) -> dict[str, float]:
        return {"timeout_s": self._asked.timeout_s, "connect_s": self._asked.connect_s}

    def _targets(self, tenant: str, model: str) -> tuple[Target, ...]:
        urls = self._asked.urls.get(tenant, self._asked.urls.get("", ()))
        if not urls:
            raise BenchError(f"tenant {tenant} has no server: give --url, or `url` in the scenario")
        key, api = self._keys.of(tenant), self._asked.api
        return tuple(Target(url=url, model=model, api=api, key=key) for url in urls)

    async def _each(self, targets: Targets, check: Check) -> None:
        """`check` for every target of every tenant, a few at once; the first failure in their order."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def gated(tenant: str, target: Target) -> None:
            async with gate:
                await check(tenant, target)

        pairs = [(tenant, target) for tenant, those in targets.items() for target in those]
        for came in await asyncio.gather(*(gated(*pair) for pair in pairs), return_exceptions=True):
            if isinstance(came, BaseException):
                raise came

    async def _models(self, tenant: str, target: Target) -> None:
        reply = await fetch(target, "models", **self._options)
        sample = reply.sample
        if sample.outcome is Outcome.OK:
            self._cards[tenant] = _cards(reply)
        elif sample.status == 0 or sample.status in (401, 403):
            raise self._failed(tenant, target, reply, "/v1/models")
        elif self._asked.model is None:
            told = self._told(reply)
            base = "is the URL what comes before /v1? If so, " if sample.status == 404 else ""
            raise BenchError(f"{target.shown}/v1/models: {told}; {base}name the model with --model", Exit.UNREACHABLE)

    def _only_model(self) -> str:
        """What there is to ask for, when the command line does not say."""
        common = set.intersection(*({card.id for card in cards} for cards in self._cards.values()))
        if len(common) == 1:
            return common.pop()
        every = sorted({card.id for cards in self._cards.values() for card in cards})
        if not every:
            raise BenchError("/v1/models has no model; is one loaded? Name it with --model", Exit.UNREACHABLE)
        raise BenchError(f"--model is missing: the server has {', '.join(every[:8])}")

    async def _tiny(self, tenant: str, target: Target) -> None:
        reply = await self._patient(target, Question(text="Say hello.", max_tokens=1))
        if reply.sample.outcome is not Outcome.OK:
            raise self._failed(tenant, target, reply, f"model {target.model}")

    async def _largest(self, tenant: str, target: Target) -> None:
        largest = self._longest[tenant].input_tokens
        text = self._prose.text(Block(namespace=f"preflight/{tenant}", id=0, tokens=max(1, largest - PLANNED_MARKS)))
        reply = await self._patient(target, Question(text=text, max_tokens=1))
        if reply.sample.outcome is Outcome.OK:
            return
        what = f"the largest prompt planned, {largest:,} tokens,"
        if reply.sample.status in (400, 413, 422):
            raise BenchError(
                f"tenant {tenant}: {target.shown} refuses {what} with {self._told(reply)}; "
                "take a server with more context, or shorter prompts (--set tenants.NAME.input.max=N)",
                Exit.UNREACHABLE,
            )
        raise self._failed(tenant, target, reply, what)

    async def _patient(self, target: Target, question: Question) -> Reply:
        """The reply, or the last of some that said that the server is full."""
        for _ in range(BUSY_TRIES - 1):
            reply = await ask(target, question, **self._options)
            if reply.sample.outcome not in REJECTED:
                return reply
            await asyncio.sleep(BUSY_WAIT_S)
        return await ask(target, question, **self._options)

    def _longest_askers(self, targets: Targets) -> Targets:
        """For each server the tenant with the longest prompt there."""
        by_length = sorted(self._longest, key=lambda tenant: self._longest[tenant].input_tokens)
        longest = {target.shown: (tenant, target) for tenant in by_length for target in targets[tenant]}
        return {tenant: [target for one, target in longest.values() if one == tenant] for tenant in by_length}

    def _context(self, model: str) -> int | None:
        told = [card.max_model_len for cards in self._cards.values() for card in cards if card.id == model]
        return min((length for length in told if length), default=None)

    def _check_context(self, context: int | None, sizes: Sizes, control: LengthControl) -> None:
        """A prompt that fits may leave too little room for the answer that it asks for."""
        if context is None:
            return
        ours = DEFAULT_MAX_TOKENS if self._asked.api == "messages" and control not in TELLING else 0
        for tenant, one in self._longest.items():
            both = [(one.prompt, one.answer), *([(one.uncapped, ours)] if ours and one.uncapped else [])]
            prompt, answer = max(both, key=sum)
            if round(sizes.real(prompt)) + answer > context:
                raise BenchError(
                    f"tenant {tenant}: a prompt of {prompt:,} tokens with an answer of up to {answer:,} "
                    f"does not fit into the model's context of {context:,}; take a server with more, or less of either "
                    "(--set tenants.NAME.input.max=N, max_tokens)",
                    Exit.UNREACHABLE,
                )

    def _failed(self, tenant: str, target: Target, reply: Reply, what: str) -> BenchError:
        told, sample = self._told(reply), reply.sample
        where = f"tenant {tenant}: {target.shown}, {what}: {told}"
        if sample.status in (401, 403):
            where += f"; {self._keys.advice(tenant)}"
        elif sample.outcome is Outcome.ERROR_CONNECT:
            where += "; is the server there, and is that its address?"
        elif sample.status == 404:
            have = [card.id for card in self._cards.get(tenant, ())]
            if target.model in have:
                where += f"; does it speak {target.api} (--api)?"
            else:
                where += f"; for this tenant /v1/models has {', '.join(have) or 'no model'} (--model)"
        elif sample.outcome in REJECTED:
            where += f"; refused {BUSY_TRIES} times: is it busy with other load, or is the tenant's quota used up?"
        return BenchError(where, Exit.UNREACHABLE)

    def _told(self, reply: Reply) -> str:
        sample = reply.sample
        status = f"status {sample.status} " if sample.status else ""
        return self._keys.scrubbed(f"{status}{sample.reason or sample.outcome.value}")


def _cards(reply: Reply) -> list[_Card]:
    try:
        return msgspec.json.decode(reply.body, type=_Cards).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _warnings(control: LengthControl, sizes: Sizes) -> list[str]:
    told = []
    if control == "none":
        told.append("nothing sets the length of answers: the model decides, and runs are not comparable in it")
    if sizes.residual > RESIDUAL:
        told.append(
            f"prompts are {sizes.residual * 100:.1f} % off their planned length, with {sizes.words:.3f} words a token"
        )
    return told


RESIDUAL = 0.02  # of a planned prompt's length
