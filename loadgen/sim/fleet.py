"""Which engines are simulated, and what a gateway in front of them would know of each.

A fleet is a YAML file: groups of equal engines (a profile and vLLM's flags) and the pools they serve. The bounds of
an endpoint follow from the flags as scheduling.md 5 has them: as many sequences as the engine runs, and one step's
budget of prompt tokens.
"""

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from loadgen.sim.engine import EngineModel
from loadgen.sim.policy import PoolSpec
from loadgen.sim.profile import EngineSettings, Profile, ProfileError
from loadgen.sim.profile import load as load_profile
from loadgen.sim.router import EngineFacts
from policies.types import Endpoint, Pool

DECODES = 32  # a middling batch: the start value of an endpoint's pace
CONTEXT_TOKENS = 1024  # of each of them


class FleetError(ValueError):
    """A fleet that does not exist or does not make sense."""


class Flags(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Engine flags that a fleet may set, under the names and with the defaults of `EngineSettings`.

    Contexts end at 32,768 tokens unless the file says otherwise. Blocks have 16 tokens, as the simulator's chains do.
    """

    variant: str = "vllm"
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    long_prefill_token_threshold: int = 0
    cap_when_alone: bool = False
    max_model_len: int = 32768
    watermark: float = 0.0
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    chunked_prefill_size: int = 8192
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0


class Group(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` equal engines, called `name` and a number. `profile` is a shipped one or a file."""

    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=256)]
    profile: str
    pools: tuple[str, ...] = ("main",)
    flags: Flags = Flags()
    long_lanes: int = 1


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All engines, and the pools they are in (none named: one called main)."""

    engines: tuple[Group, ...]
    pools: dict[str, PoolSpec] = msgspec.field(default_factory=lambda: {"main": PoolSpec()})


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One engine to be."""

    name: str
    pools: tuple[str, ...]
    profile: Profile
    settings: EngineSettings
    long_lanes: int

    def engine(self, seed: int) -> EngineModel:
        """A new engine, cold."""
        return EngineModel(self.profile, self.settings, seed)

    def endpoint(self) -> Endpoint:
        """What the gateway is told of it."""
        step, budget = self.profile.step, self._budget
        return Endpoint(
            name=self.name,
            pools=self.pools,
            max_seqs=self.settings.max_num_seqs,
            max_prefill_tokens=budget,
            prefill_tokens_per_s=_rate(budget, step.prefill_s(budget)),
            decode_s=step.step_s(DECODES, DECODES * CONTEXT_TOKENS, 0, 0.0),
            long_lanes=self.long_lanes,
            long_prefill_cap=self.settings.long_prefill_token_threshold,
            kv_tokens=self.kv_tokens,
            context_tokens=self.settings.max_model_len,
            step_tokens=budget,
        )

    @property
    def kv_tokens(self) -> int:
        """The size of its KV cache as it tells it: whole blocks; 0: without a limit."""
        size = self.settings.block_size
        return (self.profile.kv_tokens or 0) // size * size

    @property
    def _budget(self) -> int:
        """The prompt tokens of one step."""
        sglang = self.settings.variant == "sglang"
        return self.settings.chunked_prefill_size if sglang else self.settings.max_num_batched_tokens

    def facts(self) -> EngineFacts:
        """What a router is told of it."""
        known = self.endpoint()
        return EngineFacts(
            kv_tokens=known.kv_tokens,
            max_seqs=known.max_seqs,
            step_tokens=known.step_tokens,
            prefill_tokens_per_s=known.prefill_tokens_per_s,
        )


def names() -> list[str]:
    """The shipped fleets."""
    return sorted(entry.name[:-5] for entry in _shipped().iterdir() if entry.name.endswith(".yaml"))


def load(name: str) -> Fleet:
    """A shipped fleet by name, or the one in the file of that path. Raises FleetError."""
    if name.endswith((".yaml", ".yml")):
        return read(name, _text(Path(name)))
    entry = _shipped() / f"{name}.yaml"
    if "/" in name or not entry.is_file():
        raise FleetError(f"no fleet {name!r}; shipped are: {', '.join(names())}")
    return read(name, entry.read_text("utf-8"))


def read(name: str, text: str) -> Fleet:
    """The fleet that `text` describes. Raises FleetError, with the place."""
    try:
        return checked(name, yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise FleetError(f"fleet {name}: {error}") from error


def checked(name: str, raw: Any) -> Fleet:
    """The fleet of plain values. Raises FleetError, with the place."""
    try:
        fleet = msgspec.convert(raw, Fleet)
    except msgspec.ValidationError as error:
        raise FleetError(f"fleet {name}: {error}") from error
    used = [pool for group in fleet.engines for pool in group.pools]
    unknown = sorted(set(used) - set(fleet.pools))
    if not fleet.engines or unknown:
        raise FleetError(f"fleet {name}: " + (f"no pool is called {unknown[0]}" if unknown else "no engines"))
    members(fleet)
    return fleet


def members(fleet: Fleet) -> list[Member]:
    """Every engine of the fleet, in order. Raises FleetError."""
    made = [_member(group, number) for group in fleet.engines for number in range(group.count)]
    if len({member.name for member in made}) < len(made):
        raise FleetError("two engines with one name: give each group its own")
    if len({member.profile.model for member in made}) > 1:
        raise FleetError("a fleet serves one model; these profiles have several")
    return made


def pools(fleet: Fleet, model: str) -> dict[str, Pool]:
    """The pools as the gateway knows them."""
    return {
        name: Pool(
            name=name,
            model=model,
            max_total_tokens=spec.max_total_tokens,
            borrow=spec.borrow,
            lanes=spec.lanes,
            long_prompt_tokens=spec.long_prompt_tokens,
        )
        for name, spec in fleet.pools.items()
    }


def _member(group: Group, number: int) -> Member:
    try:
        profile = load_profile(group.profile)
        settings = EngineSettings(**msgspec.structs.asdict(group.flags))
        made = Member(
            name=f"{group.name}{number}",
            pools=group.pools,
            profile=profile,
            settings=settings,
            long_lanes=group.long_lanes,
        )
        made.engine(0)
    except (ProfileError, ValueError) as error:
        raise FleetError(f"engines {group.name}: {error}") from error
    return made


def _rate(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds else 1e9  # the `noop` profile takes no time


def _shipped() -> Any:
    return resources.files("loadgen").joinpath("fleets")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FleetError(f"fleet {path}: {error.strerror}") from error
