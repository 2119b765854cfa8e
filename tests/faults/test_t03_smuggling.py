"""T3: front and engine agree on where every message ends (faults.md 4; C095).

Behind the gateway stand real parsers. A message either reaches one of them as exactly the request that the gateway
logged, or none. Nothing is left over on a connection, nothing is answered 5xx but 501 and 505, nothing hangs.
"""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests.kit import corpora, mutations
from tests.kit.gateway import Gateway, Launch, config
from tests.kit.http_reader import Response
from tests.kit.invariants import holding
from tests.kit.parsers import KINDS, ParserTarget, missing
from tests.kit.processes import until_async
from tests.kit.raw_client import connect
from tests.kit.sizes import NIGHTLY, patience, sized
from tests.kit.stage import gathered

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(patience(180, 1800))]

TARGETS = KINDS if NIGHTLY else ("nginx", "httptools")
HANG_S = 1.1 + 1.5  # 11 s at a tenth, and time for a busy machine
AFTERWARDS_S = 0.2
MUTATIONS = sized(3000, 50_000)
CANARY = b"GET /v1/models HTTP/1.1\r\nhost: canary\r\n\r\n"


@dataclass(slots=True)
class Fronted:
    """The gateway in front of one parser."""

    gateway: Gateway
    target: ParserTarget

    def logged(self) -> int:
        """Requests that the gateway says it sent to the engine."""
        return sum(line["attempts"] for line in self.gateway.access())

    async def agreed(self) -> None:
        """What was parsed at the engine is what was logged here; access lines come a moment later."""

        async def same() -> bool:
            return len(self.target.parsed()) == self.logged()

        await until_async(same, 3.0, f"parsed at the engine {len(self.target.parsed())}, logged here {self.logged()}")
        assert self.target.refused() == []


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TARGETS)
async def fronted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fronted]:
    if missing(request.param):
        pytest.skip(missing(request.param))
    directory = tmp_path_factory.mktemp(f"t03-{request.param}")
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(ParserTarget(request.param, directory))
        settings = config([target.url], endpoint={"engine": "openai", "max_seqs": 512})
        launch = Launch(optimize=request.param == TARGETS[0])  # -O removes asserts: no check may live in one
        gateway = await stack.enter_async_context(Gateway(settings, directory, launch=launch))
        yield Fronted(gateway, target)


@dataclass(frozen=True, slots=True)
class Told:
    """What came back on one connection: every answer, and whether it was open | closed | silent at the end."""

    answers: list[Response]
    end: str

    @property
    def statuses(self) -> list[int]:
        return [one.status for one in self.answers]


async def told(port: int, data: bytes) -> Told:
    """Send `data` and a second request behind it; read until the close, or until an answer and then nothing came."""
    async with await connect(port) as client:
        with suppress(ConnectionError):
            await client.send(data + CANARY)
        try:
            await client.response(HANG_S)
            await client.read_to_end(AFTERWARDS_S)
        except TimeoutError:
            return Told(client.reader.done, "open" if client.reader.done else "silent")
        return Told(client.reader.done, "closed")


async def one_case(fronted: Fronted, case: corpora.Case) -> list[str]:
    """What is wrong with the outcome of that case."""
    before = len(fronted.target.parsed())
    found = await told(fronted.gateway.port, case.data)
    if not found.answers:
        return [f"{case.name}: no answer, {found.end}"]
    faults = []
    if found.statuses[0] not in case.status:
        faults.append(f"{case.name}: {found.statuses[0]}, not {sorted(case.status)}: {found.answers[0].body[:120]!r}")
    if len(found.answers) > 1:
        faults.append(f"{case.name}: what followed it was answered too: {found.statuses}")
    if found.end != "closed":
        faults.append(f"{case.name}: the connection stayed {found.end}")
    seen = fronted.target.parsed()[before:]
    if len(seen) != int(case.reaches):
        faults.append(f"{case.name}: {len(seen)} requests at the engine")
    faults += [
        f"{case.name}: the engine read another body: {one.body[:80]!r}" for one in seen if not same_body(one.body)
    ]
    return faults


def same_body(body: bytes) -> bool:
    """The fields that the client sent, whatever the gateway added."""
    sent = json.loads(corpora.BODY)
    return sent.items() <= json.loads(body).items()


async def test_c095_every_hand_case_gets_its_status_and_leaves_nothing_over(fronted: Fronted) -> None:
    async with holding(fronted.gateway):
        faults = [fault for case in corpora.cases() for fault in await one_case(fronted, case)]
        await fronted.agreed()
    assert not faults, "\n".join(faults)


async def test_a_good_message_byte_by_byte_is_the_same_message(fronted: Fronted) -> None:
    async with holding(fronted.gateway):
        for case in [one for one in corpora.cases() if one.reaches and len(one.data) < 600][:4]:
            async with await connect(fronted.gateway.port) as client:
                await client.send_slowly(case.data)
                assert (await client.response()).status == 200, case.name


async def test_c095_mutations_never_split_the_gateway_from_the_engine(fronted: Fronted, seed: int) -> None:
    messages = list(mutations.mutations(seed, MUTATIONS // len(TARGETS)))
    async with holding(fronted.gateway):
        found = await gathered([told(fronted.gateway.port, data) for data in messages], at_once=40)
        await fronted.agreed()
    assert [fault for data, one in zip(messages, found, strict=True) for fault in faults_of(data, one)] == []
    statuses = Counter(one.statuses[0] for one in found if one.answers)
    assert statuses[400] > 100 and statuses[200] > 100, statuses


def faults_of(data: bytes, found: Told) -> list[tuple[str, bytes]]:
    """What went wrong with a mutation. One that is cut short waits for its rest until a timer says 408."""
    faults = [("silent", data)] if found.end == "silent" else []
    faults += [
        (f"{one.status} {one.body[:80]!r}", data)
        for one in found.answers
        if one.status >= 500 and one.status not in (501, 505)
    ]
    return faults
