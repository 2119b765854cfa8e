"""The baselines of scheduling.md 13: routers as people run them, from their published rules with their defaults.

`make(name, engines, seed)` makes one. B0 `random`, B1 `round_robin`, B2 `least_requests`, B3 `p2c`; B4
`sgl_cache_aware`, `sgl_cache_aware_struct` and `smg_cache_aware`; B5 `llmd_weighted`; B6 `chwbl` and `chwbl_4k`; B7
`smg_least_load`, `smg_least_load_100ms` and `smg_least_load_http`; B8 `least_prefill` and B9 `lmetric`, which see what
no scrape shows.
"""

from collections.abc import Callable, Sequence
from random import Random

from loadgen.sim.router import EngineFacts, Router
from loadgen.sim.routers.cache_aware import CLI_DEFAULTS, SMG_DEFAULTS, STRUCT_DEFAULTS, CacheAware
from loadgen.sim.routers.counting import AnyEngine, LeastRequests, RoundRobin, TwoChoices
from loadgen.sim.routers.hashing import LONG_KEY_TOKENS, SHORT_KEY_TOKENS, BoundedHashing
from loadgen.sim.routers.least_load import LeastLoad
from loadgen.sim.routers.prefill import LeastPrefill, Product
from loadgen.sim.routers.weighted import Weighted

_MAKERS: dict[str, Callable[[Sequence[EngineFacts], Random], Router]] = {
    "random": lambda engines, random: AnyEngine(len(engines), random),
    "round_robin": lambda engines, random: RoundRobin(len(engines)),
    "least_requests": lambda engines, random: LeastRequests(len(engines), random),
    "p2c": lambda engines, random: TwoChoices(len(engines), random),
    "sgl_cache_aware": lambda engines, random: CacheAware(len(engines), CLI_DEFAULTS),
    "sgl_cache_aware_struct": lambda engines, random: CacheAware(len(engines), STRUCT_DEFAULTS),
    "smg_cache_aware": lambda engines, random: CacheAware(len(engines), SMG_DEFAULTS),
    "llmd_weighted": lambda engines, random: Weighted(len(engines), random),
    "chwbl": lambda engines, random: BoundedHashing(len(engines), SHORT_KEY_TOKENS),
    "chwbl_4k": lambda engines, random: BoundedHashing(len(engines), LONG_KEY_TOKENS),
    "smg_least_load": lambda engines, random: LeastLoad(len(engines), poll_s=10.0),
    "smg_least_load_100ms": lambda engines, random: LeastLoad(len(engines), poll_s=0.1),
    "smg_least_load_http": lambda engines, random: LeastLoad(len(engines), poll_s=10.0, counts_tokens=False),
    "least_prefill": lambda engines, random: LeastPrefill(len(engines), random),
    "lmetric": lambda engines, random: Product(engines, random),
}


def names() -> list[str]:
    """All routers that can be made, in the order of scheduling.md 13."""
    return list(_MAKERS)


def make(name: str, engines: Sequence[EngineFacts], seed: int) -> Router:
    """The router of that name in front of `engines`; ValueError if there is none, or no engine."""
    if name not in _MAKERS or not engines:
        raise ValueError(f"no router is called {name}; there are {', '.join(names())}" if engines else "no engines")
    return _MAKERS[name](engines, Random(f"{seed}/{name}"))
