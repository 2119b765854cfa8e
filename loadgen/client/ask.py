"""One request by itself: for a preflight, a probe, a shared prefix that is to be known before the run."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.client.exchange import Exchange, Request, Rules
from loadgen.client.route import Pools, Route
from loadgen.client.values import Api, Target
from loadgen.report.record import Outcome, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`text` in one message of the user, at most `max_tokens` of answer; `params` are further fields of the body."""

    text: str
    max_tokens: int = 1
    stream: bool = False
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back: `sample` as of a request of a run, due at time 0, and the `body` as it came."""

    sample: Sample
    body: bytes


async def ask(target: Target, question: Question, *, timeout_s: float = 30.0, connect_s: float = 5.0) -> Reply:
    """Ask and wait for the answer. Never raises for what the server does: the sample's outcome and reason tell."""
    pools = Pools(connect_s)
    fields = {**_prompt(target.api, question), "stream": question.stream, **question.params}
    return await _exchanged(Route(target, pools).question(fields), pools, timeout_s, streamed=question.stream)


async def fetch(target: Target, path: str, *, timeout_s: float = 30.0, connect_s: float = 5.0) -> Reply:
    """GET `path` below the target's `/v1`, for example `models`. Never raises for what the server does."""
    pools = Pools(connect_s)
    return await _exchanged(Route(target, pools).get(path), pools, timeout_s, streamed=False)


def _prompt(api: Api, question: Question) -> dict[str, object]:
    if api == "completions":
        return {"prompt": question.text, "max_tokens": question.max_tokens}
    if api == "responses":
        return {"input": question.text, "max_output_tokens": question.max_tokens, "store": False}
    return {"messages": [{"role": "user", "content": question.text}], "max_tokens": question.max_tokens}


async def _exchanged(request: Request, pools: Pools, timeout_s: float, *, streamed: bool) -> Reply:
    sample = Sample(
        id=0,
        tenant="",
        priority="",
        measured=False,
        input_tokens=0,
        planned_output=0,
        leaves=False,
        sched_s=0.0,
        streamed=streamed,
    )
    ended = asyncio.Event()
    exchange = Exchange(sample, request, Rules(zero=time.monotonic(), timeout_s=timeout_s), lambda _: ended.set())
    try:
        exchange.begin(None)
        await ended.wait()
    finally:
        exchange.end(Outcome.UNFINISHED)
        pools.close()
    return Reply(sample=sample, body=b"".join(exchange.kept))
