"""What the reading and writing of bodies and events costs, in µs of one core: `python tests/bench/dialects_bench.py`.

Each figure is the best of several repeats. On a busy machine compare with the reference line: one decode by msgspec of
the 2 KiB body, which is the floor of `read`.
"""

import json
import sys
import timeit
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from gateway.dialects.answers import error_answer
from gateway.dialects.call import FieldRules, read, write
from gateway.dialects.prompt import look
from gateway.dialects.routes import Dialect, Route, match
from gateway.dialects.stream import read_body, read_event, watch
from gateway.dialects.verdict import error_for
from gateway.errors import GatewayError
from policies.decisions import Reason

RULES = FieldRules(
    parameters=frozenset({"chat_template_kwargs"}), media_hosts=frozenset({"img.example"}), reject_unknown=False
)
TARGET = ("meta-llama/Llama-3.1-70B-Instruct", "s" * 43, 8192)
PROSE = "The quick brown fox jumps over the lazy dog, and then it sleeps for a while under the old tree. "
CODE = 'for (i = 0; i < n; i++) { rows[i] = f("x", [1, 2, 3]); }\n'


def best(work: Callable[[], object], number: int) -> float:
    return min(timeit.repeat(work, number=number, repeat=9)) / number * 1e6


def show(name: str, work: Callable[[], object], number: int = 2000) -> None:
    print(f"{name:58} {best(work, number):9.2f} µs")


def chat(text: str, size: int, **more: object) -> bytes:
    content = (text * (size // max(1, len(text)) + 1))[:size]
    body = {
        "model": "llama-70b",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        "temperature": 0.7,
        "max_tokens": 256,
        "stream": True,
    }
    return json.dumps(body | more, separators=(",", ":"), ensure_ascii=False).encode()


def parts(text: str, size: int) -> bytes:
    each = [{"type": "text", "text": text * 10} for _ in range(size // (len(text) * 10))]
    return chat("", 0, messages=[{"role": "user", "content": each}])


def bodies() -> None:
    route = match(b"POST", b"/v1/chat/completions")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 65536}}
    cases = {
        "prose 2 KiB": chat(PROSE, 2000),
        "code 2 KiB": chat(CODE, 2000),
        "prose 2 KiB, asks for usage": chat(PROSE, 2000, stream_options={"include_usage": True}),
        "prose 64 KiB": chat(PROSE, 65536),
        "code 64 KiB": chat(CODE, 65536),
        "parts 64 KiB": parts(CODE, 65536),
        "Chinese 64 KiB": chat("敏捷的棕色狐狸跳过懒狗。", 21845),
        "64 messages of 1 KiB": chat("", 0, messages=[{"role": "user", "content": CODE * 17}] * 64),
        "image 64 KiB": chat("", 0, messages=[{"role": "user", "content": [image]}]),
        "prose 1 MiB": chat(PROSE, 1 << 20),
        "code 16 MiB": chat(CODE, (16 << 20) - 300000),
    }
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
    show("reference: one decode of prose 2 KiB", partial(decode, cases["prose 2 KiB"]))
    for name, body in cases.items():
        number = max(1, 4_000_000 // len(body) // 10) if len(body) > 9000 else 2000
        call = read(route, body, RULES)
        show(f"read  {name} ({len(body)} bytes)", partial(read, route, body, RULES), number)
        show(f"write {name}", partial(write, call, *TARGET), number)
        show(f"look  {name}", partial(look, call, 64, ("acme", TARGET[1], TARGET[0])), number)


def events() -> None:
    route = match(b"POST", b"/v1/chat/completions")
    messages = match(b"POST", b"/v1/messages")
    chunk = (
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama-70b",'
        b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    sglang = chunk.replace(b"}\n\n", b',"usage":null}\n\n')
    usage = b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":7,"total_tokens":16}}\n\n'
    block = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":" token"}}\n\n'
    )
    whole = json.dumps(
        {"choices": [{"message": {"content": PROSE * 680}, "finish_reason": "stop"}], "usage": {}}
    ).encode()
    chat_watch = watch(route)
    show("match", lambda: match(b"POST", b"/v1/chat/completions"), 20000)
    show(f"watch chat chunk ({len(chunk)} bytes)", partial(chat_watch, chunk), 20000)
    show("watch chat chunk with usage null", partial(chat_watch, sglang), 20000)
    show("watch 16 chat chunks", partial(chat_watch, chunk * 16), 5000)
    show("watch anthropic delta", partial(watch(messages), block), 20000)
    show("read_event chat chunk", lambda: read_event(route, chunk))
    show("read_event usage chunk", lambda: read_event(route, usage))
    show("read_event anthropic delta", lambda: read_event(messages, block))
    show("read_event [DONE]", lambda: read_event(route, b"data: [DONE]\n\n"))
    show(f"read_body ({len(whole)} bytes)", lambda: read_body(route, whole), 300)
    show("error_answer", lambda: error_answer(error_for(Reason.OVERLOADED, 2.5), Dialect.OPENAI, "r" * 26))


def floods() -> None:
    """The worst a body of 16 MiB can do to the loop (http.md 4.7 allows 50 ms)."""
    route = match(b"POST", b"/v1/chat/completions")
    embeddings = match(b"POST", b"/v1/embeddings")
    most = 16 << 20
    head = b'{"model":"m","messages":['
    cases = {
        "unknown fields": b'{"model":"m","messages":[],' + b",".join(b'"%x":1' % i for i in range(1_300_000)) + b"}",
        "empty messages": head + b",".join([b"{}"] * (most // 3)) + b",[]]}",
        "messages with a part": head + b",".join([b'{"content":[{}]}'] * (most // 17)) + b"]}",
        "one string": head + b'{"role":"user","content":"' + b"a" * (most - 100) + b'"}]}',
        "depth": head + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    }
    for name, body in cases.items():
        show(f"flood {name} ({len(body)} bytes)", partial(_try, route, body), 1)
    inputs = b'{"model":"m","input":[' + b",".join([b'""'] * 5_500_000) + b"]}"
    show(f"flood embeddings inputs ({len(inputs)} bytes)", partial(_try, embeddings, inputs), 1)


def _try(route: Route, body: bytes) -> None:
    with suppress(GatewayError):
        read(route, body, RULES)


if __name__ == "__main__":
    bodies()
    events()
    floods()
