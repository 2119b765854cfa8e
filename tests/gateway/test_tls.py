"""TLS on the data listener, and certificates that change while it runs."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from gateway.assembly import prepare
from gateway.config import ConfigErrors, read
from gateway.http.pool import engine_tls
from tests.gateway.test_reload import Gate, reloaded, rewrite
from tests.kit.http_reader import ResponseReader
from tests.kit.processes import until_async
from tests.kit.stage import Stage, stage

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
FILE = 'version: 1\nmodels: {m: {context_tokens: 9}}\npools: {p: {model: m}}\nendpoints: [{name: e, url: "http://h:1", pools: [p]}]\n'


def certificate(folder: Path, name: str = "one") -> tuple[Path, Path]:
    """A self-signed one for 127.0.0.1, in `cert.pem` and `key.pem`. `name` is its subject."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def told(text: str) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(FILE + text, "f.yaml", {})
    return [str(error) for error in caught.value.errors]


class Client:
    """Speaks TLS and trusts one certificate."""

    def __init__(self, port: int, cert: Path) -> None:
        self._port, self._context = port, ssl.create_default_context(cafile=str(cert))
        self._context.set_alpn_protocols(["h2", "http/1.1"])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._context)

    async def ask(self, message: bytes) -> int:
        reader, writer = await self.connect()
        try:
            return await answer(reader, writer, message)
        finally:
            writer.close()
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> int:
    found = ResponseReader()
    writer.write(message)
    while not found.done and (data := await reader.read(65536)):
        found.feed(data)
    return found.done[0].status


async def served(made: Stage, cert: Path) -> bool:
    try:
        return await Client(made.gateway.port, cert).ask(made.message("chat", "x")) == 200
    except ssl.SSLError:
        return False


async def test_requests_and_streams_are_served_over_tls_on_kept_connections(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with stage(tmp_path, listen={"tls": {"cert": str(cert), "key": str(key)}}) as made, made.holding():
        reader, writer = await Client(made.gateway.port, cert).connect()
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for at in range(4):
            assert await answer(reader, writer, made.message("chat", f"{at}", stream=at % 2 == 0)) == 200
        assert await answer(reader, writer, made.message("chat", "x", model="unknown")) == 404
        writer.close()
        await writer.wait_closed()


async def test_a_large_body_is_refused_and_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    changes = {"listen": {"tls": {"cert": str(cert), "key": str(key)}}, "limits": {"body_bytes": "1KiB"}}
    async with stage(tmp_path, **changes) as made, made.holding():
        assert await Client(made.gateway.port, cert).ask(made.message("chat", "x" * 5000)) == 413
        gate = Gate()
        made.engine.answer = gate.answer
        reader, writer = await Client(made.gateway.port, cert).connect()
        writer.write(made.message("chat", "leaves", stream=True))
        await reader.readuntil(b"data:")
        writer.transport.abort()

        async def aborted() -> bool:
            return made.engine.seen[-1].aborted

        await until_async(aborted, 5.0, "the engine still works for nobody")


async def test_who_speaks_no_tls_or_says_nothing_is_cut_off(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with stage(tmp_path, listen={"tls": {"cert": str(cert), "key": str(key)}}) as made, made.holding():
        for words in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", made.gateway.port)) as plain:
                plain.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(plain, words)
                async with asyncio.timeout(5):
                    try:
                        while await asyncio.get_running_loop().sock_recv(plain, 100):
                            pass
                    except ConnectionResetError:
                        pass
        assert await served(made, cert)


async def test_a_new_certificate_is_presented_to_new_connections_and_open_ones_go_on(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with stage(tmp_path, listen={"tls": {"cert": str(cert), "key": str(key)}}) as made, made.holding():
        old = tmp_path / "old.pem"
        shutil.copy(cert, old)
        reader, writer = await Client(made.gateway.port, cert).connect()
        assert await answer(reader, writer, made.message("chat", "before")) == 200
        certificate(tmp_path, "two")

        async def renewed() -> bool:
            return await served(made, cert)

        await until_async(renewed, 5.0, "nobody has noticed the new certificate")
        assert not await served(made, old)
        assert await answer(reader, writer, made.message("chat", "still")) == 200
        writer.close()
        await writer.wait_closed()
        key.write_text("broken")
        assert (await reloaded(made.gateway)).status == 422
        assert await served(made, cert)


async def test_to_begin_with_tls_needs_a_restart(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    async with stage(tmp_path) as made, made.holding():
        rewrite(made.gateway, listen={"tls": {"cert": str(cert), "key": str(key)}})
        answer = await reloaded(made.gateway)
        assert [each["path"] for each in json.loads(answer.body)["errors"]] == ["listen.tls"]


def test_a_certificate_that_cannot_be_used_is_an_error_with_its_place(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = certificate(tmp_path / "other")
    at = "listen: {host: 127.0.0.1, tls: {cert: %s, key: %s}}\n"
    place = "f.yaml:5:32: listen.tls: "
    assert told(at % (cert, other)) == [place + "certificate and key cannot be used: key values mismatch"]
    assert told(at % (tmp_path / "none", key)) == [
        place + "certificate or key cannot be read: No such file or directory"
    ]
    os.mkfifo(tmp_path / "pipe")
    assert told(at % (cert, tmp_path / "pipe")) == [
        place + "certificate or key cannot be read: a named pipe, not a file"
    ]


@pytest.mark.parametrize(("scheme", "made"), [("https", 1), ("http", 0)])
def test_trusted_certificates_are_read_with_the_files_beside_the_loop_where_an_engine_speaks_tls(
    scheme: str, made: int
) -> None:
    engine_tls.cache_clear()
    text = FILE.replace("http:", f"{scheme}:") + "listen: {host: 127.0.0.1}\n"
    prepare(read(text, "f.yaml", {}).config, 1)
    assert engine_tls.cache_info().currsize == made
