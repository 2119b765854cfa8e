"""What is known about one request when it has ended: the one thing metrics and the access log are made from.

The pipeline fills it in as the request moves; every stamp is `time.monotonic()` seconds, 0.0 = never happened.
No field ever holds prompt text, a key, or anything else of the body but its size.
"""

from typing import Any


class RequestRecord:
    """One request from first byte to last. `outcome` is one of the terms of the conservation invariant (faults.md 1).

    No dataclass: setting 35 defaults costs 3 µs a request, finding them in the class costs nothing.
    """

    id: str
    received_s: float  # first byte of its head
    method: str = ""
    path: str = ""  # as in the route table; "other" for anything else
    route: str = ""
    client: str = ""  # address of the peer, or of x-forwarded-for behind a trusted proxy
    client_request_id: str = ""
    tenant: str = ""
    model: str = "unknown"
    band: str = "standard"
    pool: str = ""
    endpoint: str = ""
    streamed: bool = False
    attempts: int = 0
    retry_count: str = ""  # x-stainless-retry-count
    status: int = 0
    outcome: str = (
        ""  # rejected | expired | cancelled | failed | completed; "" = outside C1 (refused by HTTP rules, local)
    )
    reason: str = ""
    stage: str = ""  # where it was when it ended: body | queued | connect | sent | stream
    arrived_s: float = 0.0  # given to the core
    dispatched_s: float = 0.0  # last dispatch
    first_byte_s: float = 0.0  # first byte of the answer's body
    first_token_s: float = 0.0
    ended_s: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    stripped: tuple[str, ...] = ()
    lane: Any = None  # where metrics count it, once it is received

    def __init__(self, **known: Any) -> None:
        """What is known so far, by field name; `id` and `received_s` always are."""
        self.__dict__.update(known)
