"""How long a reload keeps the event loop, without sockets: CPU time of its longest steps.

A gateway with so many tenants, every kind of limit set, of which so many requests wait; then all tenants' limits change, and
their model gains its first limits and loses them again. A step is what runs between two turns of the loop. The thread that reads the
files works at the same time and is not counted. `--plain`: no tenants, nobody but the model has any limit.

Usage: python tests/bench/reload_bench.py [--tenants 1000] [--waiting 9000] [--plain] [--profile]
"""

import argparse
import asyncio
import cProfile
import gc
import pathlib
import pstats
import sys
import tempfile
import time
from typing import Any

import path_bench

from gateway.http.client import ClientConnection

KEY = path_bench.KEY
PATIENT = """
admission: {max_queued: 100000, shed: "off"}
classes: {standard: {max_queued: 100000, queue_timeout_s: 3600, age_after_s: 3600, slo: {ttft_ms: null}}}
"""
MODEL = "m: {context_tokens: 131072}"
LIMITED = "m: {context_tokens: 131072, limits: {rpm: 1000000, tpm: 900000000, max_concurrency: 900}}"
SHOWN = 5


class Mute(path_bench.Wire):
    """A transport without a socket."""

    def __init__(self) -> None:
        self.written = self.writes = 0
        self.socket = None  # type: ignore[assignment]


def crowd(path: path_bench.Path, tenants: int, waiting: int) -> list[ClientConnection]:
    """So many requests, a few of each tenant."""
    clients = []
    for number in range(waiting):
        client = ClientConnection(path.gateway._shared)
        client.connection_made(Mute())  # type: ignore[arg-type]
        key = KEY if number % tenants == tenants - 1 else f"last-{number % tenants}-0123456789"
        client.data_received(path_bench.request(512, True).replace(KEY.encode(), key.encode()))
        clients.append(client)
    return clients


class Steps:
    """CPU time of each step of the loop, of this thread alone."""

    def __init__(self, profile: bool) -> None:
        self.took_s: list[float] = []
        self._run = asyncio.Handle._run
        self._profile = cProfile.Profile() if profile else None

    def __enter__(self) -> "Steps":
        def timed(handle: asyncio.Handle) -> None:
            began_s = time.thread_time()
            if self._profile is not None:
                self._profile.enable()
            self._run(handle)
            if self._profile is not None:
                self._profile.disable()
            self.took_s.append(time.thread_time() - began_s)

        asyncio.Handle._run = timed  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[method-assign]
        if self._profile is not None:
            pstats.Stats(self._profile, stream=sys.stderr).sort_stats("tottime").print_stats(30)


async def main(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = folder / "forebay.yaml"
        if options.plain:
            config.write_text(path_bench.CONFIG.read_text())
        else:
            path_bench.with_tenants(options.tenants, folder)
        text = config.read_text().replace("max_seqs: 256", "max_seqs: 1")
        config.write_text(text.replace("port: 8080", "port: 8080, max_connections: 100000") + PATIENT)
        path = path_bench.Path(config)
        clients = crowd(path, options.tenants, options.waiting)
        core = path.gateway._core
        print(f"{core.totals().queued} of {len(clients)} wait", file=sys.stderr)
        reloader: Any = path.gateway._reloader
        roster: Any = path.gateway._roster
        roster._prober.change = roster._scraper.change = lambda *_: None  # nobody answers them here
        tenants = [] if options.plain else list((folder / "tenants.d").iterdir())
        changes = [
            ("other limits of all tenants", tenants, "rpm: 1000000", "rpm: 900000"),
            ("the first ones again", tenants, "rpm: 900000", "rpm: 1000000"),
            ("first limits of a model", [config], MODEL, LIMITED),
            ("none of a model", [config], LIMITED, MODEL),
        ]
        for what, files, before, after in changes[2:] if options.plain else changes:
            for file in files:
                file.write_text(file.read_text().replace(before, after))
            gc.collect()
            gc.freeze()
            gc.disable()
            with Steps(options.profile) as steps:
                answer = await asyncio.create_task(reloader.reload("the bench"))
                while reloader._live.again:
                    await asyncio.sleep(0)
            longest = sorted((1000 * took_s for took_s in steps.took_s), reverse=True)[:SHOWN]
            told = ", ".join(f"{each:.1f}" for each in longest)
            print(f"{what}: {len(answer.changed)} changed; longest steps {told} ms of CPU", file=sys.stderr)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--tenants", type=int, default=1000)
    arguments.add_argument("--waiting", type=int, default=9000)
    arguments.add_argument("--plain", action="store_true")
    arguments.add_argument("--profile", action="store_true")
    asyncio.run(main(arguments.parse_args()))
