"""What differs between the engine servers that can be simulated: a row for each, and one server that follows it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from loadgen.engine_server.ask import Ask, Refusal
from loadgen.engine_server.kv_events import KvBatch
from loadgen.engine_server.log import Entry
from loadgen.engine_server.options import EngineOptions
from loadgen.engine_server.pacemaker import Lag
from loadgen.engine_server.shapes import Shape
from loadgen.sim.engine import EngineModel
from loadgen.sim.sequence import Sequence

if TYPE_CHECKING:
    from loadgen.engine_server.probes import Probes


class Metrics(Protocol):
    """What a server counts beside the model, and its page. `refused`: by the queue bound that was in the way."""

    refused: dict[str, int]

    def stepped(self, model: EngineModel) -> None:
        """A step of the model has ended."""

    def ended(self, entry: Entry, reasons: list[str], now: float) -> None:
        """A request has ended, each of its choices for one of the `reasons`."""

    def render(self, model: EngineModel, lag: Lag) -> bytes:
        """The exposition text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of engine server.

    `routes`: paths that ask the model, by the name of their shape; `texts`: those that do not (fields, context). `read` makes a request of a body (route, body, whether
    markers are obeyed), `room` says how long its answer may be (request, tokens of its prompt, context). `needs_key`: of a
    path, where the engine has a key. `abort_lag_s`: how long after its client has left a request still runs (whether it is
    streamed, how long it has been open).

    `full` words the refusal of a full queue (which bound), `victim` names who goes instead, if anybody does.

    `reads_headers`: headers can set a request's id and priority. `knows_models`: another model's name is an error. `head_at_once`: a stream has its status before its first token; what
    is refused later is refused within it. `empties_itself`: what comes after SIGTERM is answered, with nothing.
    `ready`: the line that says so.
    """

    name: str
    routes: Mapping[bytes, str]
    shapes: Mapping[str, Callable[[str, Ask], Shape]]
    texts: Mapping[bytes, Callable[[dict[str, Any], int], dict[str, Any]]]
    read: Callable[[str, bytes, bool], Ask]
    room: Callable[[Ask, int, int], int]
    error_body: Callable[[Refusal, str], bytes]
    error_event: Callable[[Refusal], bytes]
    full: Callable[[str], Refusal]
    victim: Callable[[EngineModel, Sequence], Sequence | None]
    needs_key: Callable[[bytes], bool]
    abort_lag_s: Callable[[bool, float], float]
    probes: "Callable[[Any], Probes]"
    metrics: Callable[[str, EngineOptions], Metrics]
    kv_batch: KvBatch
    reads_headers: bool
    knows_models: bool
    head_at_once: bool
    empties_itself: bool
    ready: str
