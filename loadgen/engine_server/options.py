"""How simulated engines are started: the engine's own flags, and what the simulation adds."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.engine_server.kv_events import KvEventsConfig
from loadgen.sim.profile import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`count` engines on ports from `port` up (0: chosen by the system), each with its control listener.

    `control_port` None means none. `served_model_name` empty means the profile's model. Times in seconds.
    `dialect` is vllm or sglang; the last two are SGLang's: whether there is a page of metrics, and that its gauges move with
    each prefill and each so many decode steps only (0: they are always true).
    """

    profile: str
    settings: EngineSettings
    host: str = "127.0.0.1"
    port: int = 8000
    count: int = 1
    control_port: int | None = None
    startup_delay_s: float = 0.0
    seed: int = 0
    faults: tuple[str, ...] = ()
    markers: bool = False
    log: Path | None = None
    keep_alive_s: float = 5.0
    shutdown_timeout_s: float = 0.0
    shows_cached: bool = False
    stream_interval: int = 1
    served_model_name: str = ""
    api_key: str = ""
    fp8_kv: bool = False
    kv_events: KvEventsConfig | None = None
    dialect: str = "vllm"
    has_metrics: bool = True
    decode_log_interval: int = 0
