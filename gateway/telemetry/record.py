"""What is known about one request: the one thing metrics and the access log are made from, and the log's line itself.

It is filled in as the request moves and written when it has ended. A line never holds a prompt, an answer, a key, or
any part of a body but its size. A Struct, because it is made for every request and encoded once: as an object of its
own beside the line it cost 6 µs more.
"""

from datetime import datetime

import msgspec


class RequestRecord(msgspec.Struct):
    """One request, its fields in the order they are logged. Times in ms, None = never happened.

    `outcome` is one of the terms of the conservation invariant (faults.md 1): rejected, expired, cancelled, failed,
    completed; "" = outside it (refused by HTTP rules, or local). `stage` is where a cancelled one was: body, queued,
    connect, sent, stream.
    """

    ts: datetime | None = None  # when it ended
    request_id: str = ""
    client_request_id: str = ""
    client: str = ""  # address of the peer, or of x-forwarded-for behind a trusted proxy
    method: str = ""
    path: str = ""  # as in the route table; "" for anything else
    route: str = ""
    tenant: str = ""
    key: str = ""  # the id of the key, which is no secret
    model: str = "unknown"
    band: str = msgspec.field(default="standard", name="class")
    stream: bool = False
    status: int = 0
    outcome: str = ""
    reason: str = ""
    stage: str = ""
    pool: str = ""
    endpoint: str = ""
    attempts: int = 0
    client_retry: str = ""  # x-stainless-retry-count
    read_ms: float | None = None  # first byte of the head to arrival at the scheduler
    queue_ms: float | None = None  # arrival at the scheduler to the last dispatch, or to the end
    ttft_ms: float | None = None  # first byte of the head to the first token
    duration_ms: float | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    stripped: tuple[str, ...] = ()
