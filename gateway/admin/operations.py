"""What the admin listener needs of the gateway: the only way between the two."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.config import Config, ConfigError
from gateway.endpoints.directory import Standing
from gateway.endpoints.scrape import Report
from gateway.tenants import KeyView
from policies.metering import Metering
from policies.state.views import EndpointView, FlowView, ShareView, Totals

Phase = Literal["starting", "serving", "draining"]
Role = Literal["read", "operate"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A configuration that was not taken over: when, Unix time, and everything that was wrong with it."""

    at_s: float
    errors: tuple[ConfigError, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """What came of a reload: nothing has changed where there are `errors`. `checksum` of what is in force."""

    checksum: str
    changed: tuple[str, ...] = ()
    errors: tuple[ConfigError, ...] = ()


@dataclass(frozen=True, slots=True)
class Configured:
    """What is in force, since when (Unix time), and what went wrong since."""

    config: Config
    checksum: str
    loaded_s: float
    failure: Failure | None


class Operations(Protocol):
    """The running gateway as an operator sees it. All but `reload` is O(state), quick, and never waits."""

    def phase(self) -> Phase:
        """`/readyz` answers 200 in `serving` only, also with no endpoint up (http.md 12)."""
        ...

    def totals(self) -> Totals:
        """Requests since the start, by what came of them."""
        ...

    def queues(self) -> Sequence[FlowView]:
        """Every queue that holds something."""
        ...

    def shares(self) -> Sequence[ShareView]:
        """What tenants were served in the last minute, of each class of each pool."""
        ...

    def endpoints(self) -> Sequence[EndpointView]:
        """Outstanding work and bounds of every endpoint that is up or still holds work."""
        ...

    def standings(self) -> Sequence[tuple[str, Standing]]:
        """Every configured endpoint by name, with what its probes have told."""
        ...

    def reports(self) -> Iterable[Report]:
        """Every configured endpoint, with what it has told of itself."""
        ...

    async def reload(self, by: str) -> Reloaded:
        """Take over what the files say now. `by`: the id of the token, for the log."""
        ...

    def configured(self) -> Configured:
        """The configuration in force."""
        ...

    def metering(self) -> Metering:
        """What limits tenants, and how far it is used."""
        ...

    def keys(self) -> Iterator[KeyView]:
        """Every key of the configuration in force."""
        ...

    def block_key(self, key: str, by: str) -> bool:
        """Let a key open nothing any more, in every replica. False: there is none with this id. `by`: the id of the token, for
        the log."""
        ...

    def drain_endpoint(self, name: str, by: str) -> bool:
        """Send nothing new to an endpoint. False: there is none of this name. `by`: the id of the token, for the log."""
        ...

    def undrain_endpoint(self, name: str, by: str) -> bool:
        """Send to it again."""
        ...

    def explain(self, request_id: str) -> Mapping[str, object] | None:
        """What became of a request and why; None when nothing is known of it."""
        ...

    def start_drain(self, by: str) -> None:
        """Begin the drain of http.md 12; again is harmless. `by`: the id of the token, for the log."""
        ...

    def render_metrics(self) -> Iterator[bytes]:
        """The exposition of this instant, in pieces."""
        ...

    def snapshot(self) -> bytes:
        """The same values for the supervisor, which adds them to those of other processes."""
        ...


class Token(Protocol):
    """One of `admin.tokens`: `sha256` is the hex digest of the secret."""

    @property
    def id(self) -> str: ...
    @property
    def sha256(self) -> str: ...
    @property
    def role(self) -> str: ...
