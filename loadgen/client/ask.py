"""One request by itself: for a preflight, a probe, a shared prefix that is to be known before the run."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec

from loadgen.client.answer import reason_of, refused
from loadgen.client.values import Target
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
    body: dict[str, object] = {"model": target.model, "messages": [{"role": "user", "content": question.text}]}
    body |= {"max_tokens": question.max_tokens, "stream": question.stream, **question.params}
    return await _exchange(target, "POST", "chat/completions", body, aiohttp.ClientTimeout(timeout_s, connect_s))


async def fetch(target: Target, path: str, *, timeout_s: float = 30.0, connect_s: float = 5.0) -> Reply:
    """GET `path` below the target's `/v1`, for example `models`. Never raises for what the server does."""
    return await _exchange(target, "GET", path, None, aiohttp.ClientTimeout(timeout_s, connect_s))


async def _exchange(target: Target, method: str, path: str, body: object, timeout: aiohttp.ClientTimeout) -> Reply:
    began = time.monotonic()
    sample = Sample(
        id=0, tenant="", priority="", measured=False, input_tokens=0, planned_output=0, leaves=False, sched_s=0.0
    )
    headers = {"content-type": "application/json", **target.headers}
    if target.key:
        headers["authorization"] = f"Bearer {target.key}"
    data, raw = None if body is None else msgspec.json.encode(body), b""
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            url = f"{target.shown.removesuffix('/v1')}/v1/{path}"
            async with session.request(method, url, data=data, headers=headers) as response:
                raw = await response.read()
                sample.status = response.status
                sample.reason = "" if response.status == 200 else reason_of(raw)
                sample.outcome = Outcome.OK if response.status == 200 else refused(response.status, "")
    except TimeoutError:
        sample.outcome = Outcome.TIMEOUT
    except (aiohttp.ClientError, OSError) as error:
        sample.outcome, sample.reason = Outcome.ERROR_CONNECT, (str(error) or type(error).__name__)[:80]
    sample.end_s = time.monotonic() - began
    return Reply(sample=sample, body=raw)
