"""Servers that stand behind the gateway as parser targets; run as `python -m tests.kit.targets KIND PORT LOG`.

Each answers every POST with `{"seen": <length of the body>}` and appends one JSON line per request that its parser
delivered: method, target, body. What its parser refused it answers itself, and that shows too: as a missing line.
"""

import json
import sys
from pathlib import Path
from typing import Any

Scope = dict[str, Any]


class Recorder:
    """An ASGI application that writes down what it was given."""

    def __init__(self, log: Path) -> None:
        self.log = log.open("a", buffering=1)

    def note(self, method: str, target: str, body: bytes) -> bytes:
        self.log.write(json.dumps({"method": method, "target": target, "body": body.decode("latin-1")}) + "\n")
        return json.dumps(
            {"seen": len(body), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        ).encode()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        answer = self.note(scope["method"], scope["raw_path"].decode("latin-1"), body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def serve_uvicorn(port: int, log: Path, parser: str) -> None:
    import uvicorn

    app: Any = Recorder(log)
    uvicorn.run(app, host="127.0.0.1", port=port, http=parser, log_level="critical", lifespan="off", access_log=False)  # type: ignore[arg-type]


def serve_aiohttp(port: int, log: Path) -> None:
    from aiohttp import web

    recorder = Recorder(log)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            body=recorder.note(request.method, request.raw_path, await request.read()), content_type="application/json"
        )

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{rest:.*}", answer)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


def main() -> None:
    kind, port, log = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    if kind == "aiohttp":
        serve_aiohttp(port, log)
    else:
        serve_uvicorn(port, log, kind)


if __name__ == "__main__":
    main()
