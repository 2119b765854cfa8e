"""Five parsers that stand where an engine would: nginx, haproxy, aiohttp, uvicorn with h11 and with httptools.

The question of T3 is whether they parse the same messages out of what the gateway sends as the gateway logged. nginx
and haproxy pass on to a scripted engine, which records; the others record themselves.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kit.processes import Child, free_ports, python, until_async
from tests.kit.raw_client import exchange
from tests.kit.script_engine import ScriptEngine

KINDS = ("nginx", "haproxy", "aiohttp", "h11", "httptools")

NGINX = """
daemon off; master_process off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.error.log;
events {{ worker_connections 512; }}
http {{
  access_log {directory}/nginx.access.log;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  client_max_body_size 64m; keepalive_requests 100000;
  upstream behind {{ server 127.0.0.1:{behind}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""

HAPROXY = """
global
  maxconn 512
defaults
  mode http
  timeout connect 1s
  timeout client 10s
  timeout server 10s
listen target
  bind 127.0.0.1:{port}
  server behind 127.0.0.1:{behind}
"""


@dataclass(frozen=True, slots=True)
class Parsed:
    """One request that the parser delivered."""

    method: str
    target: str
    body: bytes


def missing(kind: str) -> str:
    """Why this target cannot run here, or ""."""
    if kind in ("nginx", "haproxy") and find(kind) is None:
        return f"{kind} is not installed (apt-get install {kind})"
    return ""


def find(program: str) -> str | None:
    """Debian keeps servers in /usr/sbin, which a user's PATH may lack."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")


class ParserTarget:
    """`async with ParserTarget("nginx", tmp_path) as target`; `.url` is the endpoint, `.parsed()` what was delivered."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory / kind
        self.directory.mkdir(parents=True, exist_ok=True)
        self.behind = ScriptEngine()
        self.log = self.directory / "requests.jsonl"
        self.port = 0
        self.child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def proxies(self) -> bool:
        return self.kind in ("nginx", "haproxy")

    async def __aenter__(self) -> Self:
        (self.port,) = free_ports(1)
        if self.proxies:
            await self.behind.start()
        self.child = Child(self._argv(), self.directory, self.kind)
        try:
            await until_async(self._answers, 15.0, f"{self.kind} does not answer")
        except BaseException as error:
            self.child.kill()
            await self.behind.stop()
            error.add_note(self.child.err.read_text(errors="replace")[-1000:])
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self.child is not None
        await self.child.stop()
        await self.behind.stop()

    def parsed(self) -> list[Parsed]:
        """Every POST delivered so far (probes are GETs)."""
        if self.proxies:
            found = [
                Parsed(one.method.decode("latin-1"), one.target.decode("latin-1"), one.body) for one in self.behind.seen
            ]
        else:
            lines = self.log.read_text().splitlines() if self.log.exists() else []
            entries = [json.loads(line) for line in lines]
            found = [Parsed(one["method"], one["target"], one["body"].encode("latin-1")) for one in entries]
        return [one for one in found if one.method != "GET"]

    def refused(self) -> list[str]:
        """What nginx itself answered 4xx: bytes the gateway let through that are no request. 499 is a client that left."""
        log = self.directory / "nginx.access.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return [line for line in lines if '" 4' in line and '" 499 ' not in line]

    def _argv(self) -> list[str]:
        if self.kind == "nginx":
            return [str(find("nginx")), "-p", str(self.directory), "-c", str(self._written("nginx.conf", NGINX))]
        if self.kind == "haproxy":
            return [str(find("haproxy")), "-db", "-f", str(self._written("haproxy.cfg", HAPROXY))]
        return python("-m", "tests.kit.targets", self.kind, str(self.port), str(self.log))

    def _written(self, name: str, template: str) -> Path:
        file = self.directory / name
        file.write_text(template.format(directory=self.directory, port=self.port, behind=self.behind.port))
        return file

    async def _answers(self) -> bool:
        assert self.child is not None
        if self.child.exited:
            raise RuntimeError(f"{self.kind} ended with status {self.child.process.returncode}")
        try:
            return (
                await exchange(self.port, b"GET /health HTTP/1.1\r\nhost: kit\r\nconnection: close\r\n\r\n")
            ).status == 200
        except OSError:
            return False
