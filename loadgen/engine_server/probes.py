"""The routes that do not generate: health, models, version, load and metrics, with the faults of the last."""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from loadgen.engine_server.http import Request
from loadgen.engine_server.log import Entry
from loadgen.engine_server.spoiled import Spoiled
from loadgen.faults import Stage

if TYPE_CHECKING:
    from loadgen.engine_server.server import SimulatedEngine

VERSION = "0.32.0"  # the vLLM whose dialect is spoken
JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
NOT_ALLOWED = b'{"detail":"Method Not Allowed"}'
Answered = tuple[int, bytes, tuple[bytes, bytes]]  # status, body, its type


class Probes:
    """Answers what monitors and gateways ask of one engine."""

    paths = frozenset({b"/health", b"/ping", b"/version", b"/load", b"/v1/models", b"/metrics"})
    admin: frozenset[bytes] = frozenset()  # those of them that no gateway should ever let through
    owner = "vllm"
    more_of_model: Mapping[str, object] = {"permission": []}

    def __init__(self, engine: "SimulatedEngine") -> None:
        self._engine = engine
        self._frozen = b""
        self._spoiled = Spoiled(engine.faults)
        self._rendered_s = 0.0

    def handle(self, request: Request, entry: Entry) -> None:
        """Answer one probe."""
        self._give(request, entry, self._answer(request))

    def _give(self, request: Request, entry: Entry, answer: Answered) -> None:
        engine = self._engine
        status, body, header = answer
        hit = engine.faults.strike(Stage.HEAD, {"path": entry.path}, named=True)
        status = next((int(fault.amount) for fault in hit if fault.name == "status"), status)
        entry.status = status
        engine.log.close(entry, "answered", time.monotonic())
        if request.path == b"/metrics":
            self._give_page(request, (status, body, header))
        else:
            request.connection.answer(status, [header], body)

    def _give_page(self, request: Request, answer: Answered) -> None:
        status, body, header = answer
        half, slow = self._spoiled.half(body), self._engine.faults.find("slow")
        if half is not None:
            request.connection.head(status, [header, (b"content-length", b"%d" % len(body))])
            request.connection.write(half)
            request.connection.close()
        elif slow is None:
            request.connection.answer(status, [header], body)
        else:
            later = asyncio.get_running_loop().call_later
            later(slow.amount / 1e3, request.connection.answer, status, [header], body)

    def _answer(self, request: Request) -> Answered:
        engine, path = self._engine, request.path
        if request.method not in (b"GET", b"HEAD") and not (path == b"/ping" and request.method == b"POST"):
            return 405, NOT_ALLOWED, JSON
        if engine.faults.find("startup") is not None:
            return 503, b"", TEXT
        if path in (b"/health", b"/ping"):
            return 200, b"", TEXT
        if path == b"/version":
            return 200, msgspec.json.encode({"version": VERSION}), JSON
        if path == b"/load":
            return 200, b'{"server_load":0}', JSON  # counted only with --enable-server-load-tracking
        if path == b"/metrics":
            return self._metrics()
        return 200, self._models(), JSON

    def _metrics(self) -> Answered:
        engine = self._engine
        if engine.faults.find("absent") is not None:
            return 404, b'{"detail":"Not Found"}', JSON
        stale = engine.faults.find("stale")
        old_s = time.monotonic() - self._rendered_s
        kept = engine.faults.find("freeze") is not None or (stale is not None and old_s < stale.amount)
        if not kept or not self._frozen:
            self._rendered_s = time.monotonic()
            self._frozen = engine.metrics.render(engine.model, engine.pacemaker.lag)
        return 200, self._spoiled.page(self._frozen), TEXT

    def _models(self) -> bytes:
        engine = self._engine
        model = {
            "id": engine.model_name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": self.owner,
            "root": engine.model_name,
            "parent": None,
            "max_model_len": engine.options.settings.max_model_len,
            **self.more_of_model,
        }
        return msgspec.json.encode({"object": "list", "data": [model]})
