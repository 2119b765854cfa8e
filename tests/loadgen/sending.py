"""What tests of the load client share: planned requests, a client on a server of a test, and a watcher that remembers."""

import socket
from collections.abc import Sequence
from typing import Any

from loadgen.client import OTHERS, Client, ClientOptions, Target, Watcher
from loadgen.report.record import Outcome, Sample
from loadgen.schedule import Planned, Schedule
from loadgen.workload.prompts import Block, Prose


def planned(number: int, t: float = 0.0, **more: Any) -> Planned:
    """One small request."""
    said: dict[str, Any] = {
        "tenant": "chat", "priority": "batch", "cls": "all", "input_tokens": 32, "output_tokens": 3, "max_tokens": 64,
        "measured": True, "blocks": (Block(namespace="chat", id=number, tokens=30),),
    }  # fmt: skip
    return Planned(id=number, t=t, **{**said, **more})


def schedule(*requests: Planned, window_s: float = 60.0) -> Schedule:
    return Schedule(name="test", seed=1, window_start_s=0, window_end_s=window_s, requests=requests)


def steady(rate: float, count: int, **more: Any) -> list[Planned]:
    """`count` requests at equal gaps."""
    return [planned(number, number / rate, **more) for number in range(count)]


def conversation(user: int, turns: int, think_s: float, first: int, t: float = 0.0) -> list[Planned]:
    """Turns of one user, one after the other."""
    return [
        planned(
            first + turn,
            t + turn * think_s,
            session=f"u{user}",
            turn=turn,
            after=first + turn - 1 if turn else None,
            think_s=think_s if turn else 0.0,
        )
        for turn in range(turns)
    ]


def users(count: int, turns: int, think_s: float) -> list[Planned]:
    """Conversations of many, who begin one soon after the other."""
    talks = (conversation(user, turns, think_s, user * turns, user * 0.003) for user in range(count))
    return sorted((one for talk in talks for one in talk), key=lambda one: one.t)


def turns(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Each turn that came after another, behind that one."""
    known = {(one.session, one.turn): one for one in samples}
    return [(known[one.session, one.turn - 1], one) for one in samples if one.turn]


class Seen:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.sent_ids: list[int] = []
        self.ended_as: dict[int, Outcome] = {}
        self.open = self.peak = 0

    def sent(self, sample: Sample) -> None:
        self.sent_ids.append(sample.id)
        self.open += 1
        self.peak = max(self.peak, self.open)

    def ended(self, sample: Sample) -> None:
        assert sample.id not in self.ended_as
        self.ended_as[sample.id] = sample.outcome
        self.open -= sample.outcome is not Outcome.DROPPED


def client(plan: Schedule, urls: Sequence[str | Target], watcher: Watcher | None = None, **options: Any) -> Client:
    targets = [url if isinstance(url, Target) else Target(url=url, model="m") for url in urls]
    return Client(plan, {OTHERS: targets}, ClientOptions(**{"lead_s": 0.05, **options}), watcher or Seen())


async def sent(urls: Sequence[str | Target], *requests: Planned, **options: Any) -> list[Sample]:
    """The samples of a run of those requests."""
    return await client(schedule(*requests), urls, **options).run(Prose("salt"))


def nobody() -> str:
    """A URL where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{held.getsockname()[1]}"
