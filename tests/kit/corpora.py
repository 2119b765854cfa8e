"""Messages made to be read differently by two parsers, with the status each must get (http.md 3).

Every case is one message; a test appends a second request to see whether anything is left over. A good case (200)
reaches an engine exactly once, any other never.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

BODY = b'{"model":"m","messages":[{"role":"user","content":"smuggle"}],"max_tokens":4}'
PATH = b"/v1/chat/completions"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"content-length: %d" % len(BODY)
JSON = b"content-type: application/json"
HOST = b"host: forebay"

OK = frozenset({200})
BAD = frozenset({400})
CODING = frozenset({400, 501})
VERSION = frozenset({400, 505})


@dataclass(frozen=True, slots=True)
class Case:
    """`data` is sent as it is; the first answer's status must be in `status`."""

    name: str
    data: bytes
    status: frozenset[int]

    @property
    def reaches(self) -> bool:
        return self.status == OK


def message(
    *headers: bytes, line: bytes = b"POST " + PATH + b" HTTP/1.1", body: bytes = BODY, host: bytes = HOST
) -> bytes:
    """A message of exactly these headers, after Host and content-type."""
    lines = [line, *([host] if host else []), JSON, *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def cases() -> list[Case]:
    """All hand-made cases; names are unique."""
    groups: tuple[Callable[[], Iterator[Case]], ...] = (
        _good, _lengths, _codings, _both, _chunks, _lines, _request_lines, _targets, _hosts, _connection, _sizes, _content,
    )  # fmt: skip
    return [case for group in groups for case in group()]


def _good() -> Iterator[Case]:
    yield Case("plain", message(LENGTH), OK)
    yield Case("chunked", message(b"transfer-encoding: chunked", body=CHUNKED), OK)
    for value in (b"Chunked", b"CHUNKED", b"\tchunked"):
        yield Case(f"coding {value!r}", message(b"transfer-encoding: " + value, body=CHUNKED), OK)
    yield Case("length with leading zeros", message(b"content-length: 000%d" % len(BODY)), OK)
    yield Case("length with tab after it", message(LENGTH + b"\t"), OK)
    yield Case("empty line before the request", b"\r\n" + message(LENGTH), OK)
    yield Case("http/1.0", message(LENGTH, line=b"POST " + PATH + b" HTTP/1.0"), OK)
    yield Case("http/1.0 without host", message(LENGTH, line=b"POST " + PATH + b" HTTP/1.0", host=b""), OK)
    yield Case("query is dropped", message(LENGTH, line=b"POST " + PATH + b"?id=1&beta=true HTTP/1.1"), OK)
    yield Case("absolute form, same host", message(LENGTH, line=b"POST http://forebay" + PATH + b" HTTP/1.1"), OK)
    yield Case("name with underscore", message(LENGTH, b"x_real_ip: 1.2.3.4"), OK)
    yield Case("value with high bytes", message(LENGTH, b"x-note: caf\xc3\xa9"), OK)
    yield Case("nominated x-foo", message(LENGTH, b"connection: x-foo", b"x-foo: 1"), OK)
    yield Case("underscored length beside the real one", message(LENGTH, b"content_length: 3"), OK)
    yield Case("underscored coding beside the real length", message(LENGTH, b"transfer_encoding: chunked"), OK)
    yield Case("host with a space behind", message(LENGTH, host=HOST + b" "), OK)
    yield Case("underscored coding of the content", message(LENGTH, b"content_encoding: gzip"), OK)
    yield Case("underscored deadline", message(LENGTH, b"x_forebay_timeout_ms: 1"), OK)
    yield Case("underscored second host", message(LENGTH, b"ho_st: x"), OK)
    yield Case("expect continue", message(LENGTH, b"expect: 100-continue"), OK)
    yield Case("charset utf-8", message(LENGTH).replace(JSON, JSON + b"; charset=utf-8"), OK)


def _lengths() -> Iterator[Case]:
    size = b"%d" % len(BODY)
    values = {
        "empty": b"", "plus": b"+" + size, "minus": b"-" + size, "hex": b"0x%x" % len(BODY), "list": size + b", " + size, "two numbers": size + b" " + size,
        "fraction": size + b".0", "exponent": size + b"e0", "underscore": b"7_8", "letters": b"abc", "overflow": b"9" * 25, "2^64 and more": b"18446744073709551694",
        "comma behind": size + b",", "semicolon": size + b";", "quoted": b'"' + size + b'"', "arabic digits": "٧٨".encode(), "full-width digits": "７８".encode(),
        "high byte": size + b"\xff", "NUL": size + b"\x00", "vertical tab": b"\x0b" + size, "form feed": size + b"\x0c", "octal": b"0o116", "brackets": b"[" + size + b"]",
        "infinite": b"inf", "null": b"null", "true": b"true",
    }  # fmt: skip
    for name, value in values.items():
        yield Case(f"length {name}", message(b"content-length: " + value), BAD)
    yield Case("length twice, equal", message(LENGTH, LENGTH), BAD)
    yield Case("length twice, smaller second", message(LENGTH, b"content-length: 3"), BAD)
    yield Case("length twice, smaller first", message(b"content-length: 3", LENGTH), BAD)
    yield Case("length twice, zero first", message(b"content-length: 0", LENGTH), BAD)
    yield Case("length twice, other case", message(LENGTH, b"Content-Length: 3"), BAD)
    yield Case("length, space before colon", message(b"content-length : %d" % len(BODY)), BAD)
    yield Case("length, tab before colon", message(b"content-length\t: %d" % len(BODY)), BAD)
    yield Case("length only with underscore", message(b"content_length: %d" % len(BODY)), BAD)
    yield Case("length folded", message(b"content-length:\r\n %d" % len(BODY)), BAD)
    yield Case("no length and no coding, body follows", message(), BAD)


def _codings() -> Iterator[Case]:
    values = {
        "identity": b"identity", "gzip": b"gzip", "xchunked": b"xchunked", "chunkedx": b"chunkedx", "chunked, identity": b"chunked, identity", "chunked twice": b"chunked, chunked",
        "gzip, chunked": b"gzip, chunked", "chunked, gzip": b"chunked, gzip", "empty": b"", "quality": b"chunked;q=1", "parameter": b"chunked; a=b", "quoted": b'"chunked"',
        "apostrophes": b"'chunked'", "split word": b"chun ked", "comma behind": b"chunked,", "comma before": b",chunked", "NUL behind": b"chunked\x00", "NUL before": b"\x00chunked",
        "vertical tab": b"\x0bchunked", "form feed": b"\x0cchunked", "backspace": b"\x08chunked", "DEL": b"\x7fchunked", "high byte before": b"\xa0chunked", "high byte behind": b"chunked\xa0",
        "next line U+0085": b"\xc2\x85chunked", "colon": b": chunked", "equals": b"=chunked", "deflate": b"deflate", "compress": b"compress", "trailers": b"trailers", "cow": b"cow",
        "lookalike k": "chun\u212aed".encode(), "brackets": b"[chunked]", "semicolon": b"chunked;", "space comma": b"chunked , x", "space behind": b"chunked ", "tab behind": b"chunked\t", "identity, chunked": b"identity, chunked",
    }  # fmt: skip
    for name, value in values.items():
        yield Case(f"coding {name}", message(b"transfer-encoding: " + value, body=CHUNKED), CODING)
    names = {
        "space before colon": b"transfer-encoding : chunked", "tab before colon": b"transfer-encoding\t: chunked", "space in front": b" transfer-encoding: chunked",
        "NUL in the name": b"transfer\x00-encoding: chunked", "high byte in the name": b"transfer-encoding\xff: chunked", "only with underscore": b"transfer_encoding: chunked",
        "CR in the name": b"transfer-encoding\r: chunked", "brackets": b"[transfer-encoding]: chunked", "folded": b"transfer-encoding:\r\n chunked",
        "folded name": b"transfer-\r\n encoding: chunked", "quoted name": b'"transfer-encoding": chunked', "no colon": b"transfer-encoding chunked",
    }  # fmt: skip
    for name, line in names.items():
        yield Case(f"coding name {name}", message(line, body=CHUNKED), CODING)
    yield Case(
        "coding twice, equal",
        message(b"transfer-encoding: chunked", b"transfer-encoding: chunked", body=CHUNKED),
        CODING,
    )
    yield Case(
        "coding twice, identity second",
        message(b"transfer-encoding: chunked", b"transfer-encoding: identity", body=CHUNKED),
        CODING,
    )
    yield Case(
        "coding twice, identity first",
        message(b"transfer-encoding: identity", b"transfer-encoding: chunked", body=CHUNKED),
        CODING,
    )
    yield Case(
        "coding in http/1.0",
        message(b"transfer-encoding: chunked", line=b"POST " + PATH + b" HTTP/1.0", body=CHUNKED),
        BAD,
    )


def _both() -> Iterator[Case]:
    coding = b"transfer-encoding: chunked"
    yield Case("length then coding", message(LENGTH, coding), CODING)
    yield Case("coding then length", message(coding, LENGTH), CODING)
    yield Case("length then coding, chunked body", message(LENGTH, coding, body=CHUNKED), CODING)
    yield Case("coding then length, chunked body", message(coding, LENGTH, body=CHUNKED), CODING)
    yield Case("length 0 then coding", message(b"content-length: 0", coding, body=CHUNKED), CODING)
    yield Case("coding then length 0", message(coding, b"content-length: 0", body=CHUNKED), CODING)
    yield Case("length with unknown coding", message(LENGTH, b"transfer-encoding: xchunked"), CODING)
    yield Case("length with empty coding", message(LENGTH, b"transfer-encoding:"), CODING)
    yield Case(
        "coding before host",
        b"POST " + PATH + b" HTTP/1.1\r\n" + b"\r\n".join([coding, HOST, JSON, LENGTH]) + b"\r\n\r\n" + CHUNKED,
        CODING,
    )
    smuggled = b"0\r\n\r\nPOST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
    yield Case(
        "CL.TE with a request inside", message(b"content-length: %d" % len(smuggled), coding, body=smuggled), CODING
    )
    yield Case("TE.CL with a request inside", message(coding, b"content-length: 4", body=b"5c\r\n" + smuggled), CODING)


def _chunks() -> Iterator[Case]:
    def chunked(name: str, body: bytes, status: frozenset[int] = BAD) -> Case:
        return Case(f"chunk {name}", message(b"transfer-encoding: chunked", body=body), status)

    size = b"%x" % len(BODY)
    sizes = {
        "minus": b"-" + size, "plus": b"+" + size, "hex prefix": b"0x" + size, "space before": b" " + size, "letter": b"g", "overflow": b"f" * 17, "empty": b"", "underscore": b"4_e",
        "NUL": size + b"\x00", "arabic digit": "٤".encode(), "tab before": b"\t" + size, "comma": size + b",", "high byte": size + b"\xff", "dot": size + b".0",
    }  # fmt: skip
    for name, value in sizes.items():
        yield chunked(f"size {name}", value + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("LF after size", size + b"\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("CR after size", size + b"\r" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("LF after data", size + b"\r\n" + BODY + b"\n0\r\n\r\n")
    yield chunked("no end after data", size + b"\r\n" + BODY + b"0\r\n\r\n")
    yield chunked("two bytes of junk after data", size + b"\r\n" + BODY + b"XX0\r\n\r\n")
    yield chunked("LF at the very end", size + b"\r\n" + BODY + b"\r\n0\n\n")
    yield chunked("data longer than size", b"%x" % (len(BODY) - 3) + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("LF in extension", size + b";a\nb\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("CR in extension", size + b";a\rb\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("NUL in extension", size + b";a=\x00\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked("length in trailer", size + b"\r\n" + BODY + b"\r\n0\r\ncontent-length: 3\r\n\r\n")
    yield chunked("NUL in trailer", size + b"\r\n" + BODY + b"\r\n0\r\nx: \x00\r\n\r\n")
    yield chunked("LF in trailer", size + b"\r\n" + BODY + b"\r\n0\r\nx: y\nz: w\r\n\r\n")
    yield chunked("size line of 100 kB", size + b";" + b"a" * 100_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    yield chunked(
        "trailers of 9 kB", size + b"\r\n" + BODY + b"\r\n0\r\n" + b"x-t: 1\r\n" * 1200 + b"\r\n", frozenset({431})
    )
    yield chunked("extension", size + b";a=b\r\n" + BODY + b"\r\n0\r\n\r\n", OK)
    yield chunked("small trailers", size + b"\r\n" + BODY + b"\r\n0\r\nx-t: 1\r\nauthorization: Bearer x\r\n\r\n", OK)
    yield chunked("leading zeros", b"0" * 300 + size + b"\r\n" + BODY + b"\r\n0\r\n\r\n", OK)
    yield chunked("one byte each", b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n", OK)
    yield chunked("upper-case size", size.upper() + b"\r\n" + BODY + b"\r\n0\r\n\r\n", OK)


def _lines() -> Iterator[Case]:
    good = message(LENGTH)
    yield Case("LF everywhere in the head", good.replace(b"\r\n", b"\n"), BAD)
    yield Case("CR everywhere in the head", good.replace(b"\r\n", b"\r"), BAD)
    yield Case("LF after the request line", good.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"), BAD)
    yield Case("CRCRLF", good.replace(HOST + b"\r\n", HOST + b"\r\r\n"), BAD)
    lines = {
        "LF in a value": b"x: a\nb: c", "CR in a value": b"x: a\rb", "NUL in a value": b"x: a\x00b", "BEL in a value": b"x: a\x07b", "ESC in a value": b"x: \x1b[31m",
        "empty name": b": x", "no colon": b"justaword", "space in the name": b"x y: z", "space in front": b" x: y", "fold": b"x: a\r\n b", "fold by tab": b"x: a\r\n\tb",
        "NUL in the name": b"x\x00y: z", "high byte in the name": b"x\xffy: z", "slash in the name": b"x/y: z", "brackets in the name": b"x[y]: z", "at in the name": b"x@y: z",
        "quote in the name": b'x"y: z', "comma in the name": b"x,y: z", "DEL in the name": b"x\x7fy: z", "only spaces": b"   ",
    }  # fmt: skip
    for name, line in lines.items():
        yield Case(f"line {name}", message(line, LENGTH), BAD)
    yield Case("no head, only noise", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"A" * 40 + b"\r\n\r\n", BAD)
    yield Case("an SSH client", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", BAD)


def _request_lines() -> Iterator[Case]:
    lines = {
        "unknown method": (b"FOO " + PATH + b" HTTP/1.1", BAD), "lower-case method": (b"post " + PATH + b" HTTP/1.1", BAD), "tab between": (b"POST\t" + PATH + b"\tHTTP/1.1", BAD),
        "no version": (b"POST " + PATH, VERSION), "version 1.2": (b"POST " + PATH + b" HTTP/1.2", VERSION), "version 9.9": (b"POST " + PATH + b" HTTP/9.9", VERSION),
        "version 2.0": (b"POST " + PATH + b" HTTP/2.0", VERSION), "version 0.9": (b"POST " + PATH + b" HTTP/0.9", VERSION), "version 3": (b"POST " + PATH + b" HTTP/3", VERSION),
        "version 1.10": (b"POST " + PATH + b" HTTP/1.10", VERSION), "version 01.1": (b"POST " + PATH + b" HTTP/01.1", VERSION), "version lower-case": (b"POST " + PATH + b" http/1.1", VERSION),
        "version with space behind": (b"POST " + PATH + b" HTTP/1.1 ", VERSION), "version arabic": (b"POST " + PATH + " HTTP/١.١".encode(), VERSION), "version comma": (b"POST " + PATH + b" HTTP/1,1", VERSION),
        "version ICY": (b"POST " + PATH + b" ICY/1.1", VERSION), "method with NUL": (b"PO\x00ST " + PATH + b" HTTP/1.1", BAD), "method with high byte": (b"P\xd6ST " + PATH + b" HTTP/1.1", BAD),
        "HTTP/2 preface": (b"PRI * HTTP/2.0", VERSION), "CONNECT": (b"CONNECT forebay:443 HTTP/1.1", BAD), "space before method": (b" POST " + PATH + b" HTTP/1.1", BAD),
    }  # fmt: skip
    for name, (line, status) in lines.items():
        yield Case(f"request line {name}", message(LENGTH, line=line), status)
    for method, status in (
        (b"GET", 400),
        (b"PUT", 405),
        (b"DELETE", 405),
        (b"PATCH", 405),
        (b"OPTIONS", 405),
        (b"TRACE", 405),
    ):
        allowed = frozenset({status, 405}) if method == b"GET" else frozenset({status})
        yield Case(f"method {method.decode()}", message(LENGTH, line=method + b" " + PATH + b" HTTP/1.1"), allowed)


def _targets() -> Iterator[Case]:
    not_found, bad = frozenset({404}), BAD
    targets = {
        "asterisk": (b"*", bad), "fragment": (PATH + b"#x", bad), "high byte": (PATH + b"\xff", bad), "NUL": (PATH + b"\x00", bad), "DEL": (PATH + b"\x7f", bad),
        "authority form": (b"forebay:80", bad), "absolute, other host": (b"http://other" + PATH, bad), "absolute, user info": (b"http://forebay@other" + PATH, bad),
        "absolute, port": (b"http://forebay:81" + PATH, bad), "no slash": (b"v1/chat/completions", bad), "3 kB": (b"/" + b"a" * 3000, frozenset({414})),
        "70 kB": (b"/" + b"a" * 70_000, frozenset({414, 431})), "double slash": (b"/" + PATH, not_found), "dot segment": (b"/v1/./chat/completions", not_found),
        "dot dot": (b"/v1/x/../chat/completions", not_found), "encoded slash": (b"/v1%2fchat/completions", not_found), "encoded letter": (b"/v1/ch%61t/completions", not_found),
        "semicolon": (PATH + b";x=1", not_found), "backslash": (b"\\v1\\chat\\completions", frozenset({400, 404})), "slash behind": (PATH + b"/", not_found), "upper case": (PATH.upper(), not_found),
        "encoded NUL": (PATH + b"%00", not_found), "engine metrics": (b"/metrics", not_found), "engine sleep": (b"/sleep", not_found),
    }  # fmt: skip
    for name, (target, status) in targets.items():
        yield Case(f"target {name}", message(LENGTH, line=b"POST " + target + b" HTTP/1.1"), status)


def _hosts() -> Iterator[Case]:
    yield Case("host missing", message(LENGTH, host=b""), BAD)
    yield Case("host twice, equal", message(HOST, LENGTH), BAD)
    yield Case("host twice, different", message(b"host: other", LENGTH), BAD)
    for name, value in {
        "empty": b"", "space": b"fore bay", "slash": b"fore/bay", "at": b"a@forebay", "comma": b"a, b", "question": b"a?b", "hash": b"a#b", "NUL": b"a\x00b", "high byte": b"a\xffb",
        "300 letters": b"a" * 300, "quote": b'"forebay"', "percent": b"fore%62ay", "backslash": b"a\\b", "asterisk": b"*",
    }.items():  # fmt: skip
        yield Case(f"host {name}", message(LENGTH, host=b"host: " + value), BAD)
    for name, value in {
        "port": b"forebay:8080",
        "v4": b"127.0.0.1",
        "v6": b"[::1]:80",
        "underscore": b"fore_bay",
    }.items():
        yield Case(f"host good {name}", message(LENGTH, host=b"host: " + value), OK)


def _connection() -> Iterator[Case]:
    for name in (b"authorization", b"x-api-key", b"content-length", b"transfer-encoding", b"host", b"traceparent"):
        yield Case(f"nominated {name.decode()}", message(LENGTH, b"connection: " + name), BAD)
    yield Case("nominated in a list, other case", message(LENGTH, b"connection: keep-alive, Content-Length"), BAD)
    yield Case("nominated on a second line", message(LENGTH, b"connection: keep-alive", b"connection: Host"), BAD)
    yield Case("upgrade to websocket", message(LENGTH, b"connection: upgrade", b"upgrade: websocket"), BAD)
    yield Case(
        "upgrade to h2c",
        message(LENGTH, b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABk"),
        BAD,
    )
    yield Case("upgrade not nominated", message(LENGTH, b"upgrade: websocket"), BAD)
    yield Case("expect other", message(LENGTH, b"expect: 200-ok"), frozenset({417}))
    yield Case("expect empty", message(LENGTH, b"expect:"), frozenset({417, 400}))
    yield Case("expect twice", message(LENGTH, b"expect: 100-continue", b"expect: 100-continue"), BAD)
    yield Case("authorization twice", message(LENGTH, b"authorization: Bearer a", b"authorization: Bearer a"), BAD)
    yield Case("x-api-key twice", message(LENGTH, b"x-api-key: a", b"x-api-key: a"), BAD)
    yield Case("two different keys", message(LENGTH, b"authorization: Bearer a", b"x-api-key: b"), frozenset({401}))


def _sizes() -> Iterator[Case]:
    too_large = frozenset({431})
    yield Case("field of 9 kB", message(LENGTH, b"x-long: " + b"a" * 9000), too_large)
    yield Case("field name of 9 kB", message(LENGTH, b"x" * 9000 + b": a"), too_large)
    yield Case("200 fields", message(LENGTH, *(b"x-%d: 1" % at for at in range(200))), too_large)
    yield Case("10,000 fields", message(LENGTH, *(b"x-%d: 1" % at for at in range(10_000))), too_large)
    yield Case("head of 40 kB", message(LENGTH, *(b"x-%d: " % at + b"a" * 4000 for at in range(10))), too_large)
    yield Case("field of 8 kB", message(LENGTH, b"x-long: " + b"a" * 8100), OK)
    yield Case("100 fields", message(LENGTH, *(b"x-%d: 1" % at for at in range(100))), OK)
    yield Case("length of 10 GB", message(b"content-length: 10737418240"), frozenset({413}))


def _content() -> Iterator[Case]:
    def with_type(line: bytes) -> bytes:
        return message(LENGTH).replace(JSON + b"\r\n", line)

    media, coding = frozenset({415}), frozenset({415})
    for name, line in {
        "none": b"", "text": b"content-type: text/plain\r\n", "multipart": b"content-type: multipart/form-data; boundary=x\r\n", "utf-16": JSON + b"; charset=utf-16\r\n",
        "form": b"content-type: application/x-www-form-urlencoded\r\n", "json prefix": b"content-type: application/jsonx\r\n", "suffix": b"content-type: application/ld+json\r\n",
    }.items():  # fmt: skip
        yield Case(f"type {name}", with_type(line), media)
    yield Case("type twice", message(LENGTH, JSON), BAD)
    for value in (b"gzip", b"deflate", b"br", b"gzip, identity", b"zstd"):
        yield Case(f"encoding {value.decode()}", message(LENGTH, b"content-encoding: " + value), coding)
    yield Case("encoding identity", message(LENGTH, b"content-encoding: identity"), OK)
