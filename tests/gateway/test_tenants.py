"""Who is asking: credentials, the book of keys, classes, salts, the throttle. Without sockets."""

import asyncio
import datetime
import hashlib
import itertools
import sys
import time
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import yaml

from gateway.app import Gateway
from gateway.backends import CrossedPartition
from gateway.callers import Caller, ServedModel, Urgency, urgency
from gateway.config import Config, Loaded, read
from gateway.errors import GatewayError
from gateway.http.client import ClientConnection
from gateway.http.head import Head
from gateway.tenants import Book, Tenants, Throttle, make_book
from gateway.tenants.book import Entry
from gateway.tenants.salts import cache_salt
from gateway.tenants.throttle import ADDRESSES
from policies.decisions import Reason
from policies.events import EndpointUp, SettingsChanged
from tests.gateway.test_tenant_files import ENVIRON, FLEET
from tests.kit.tenants import key, secret, tenant

LOCAL = FLEET + "listen: {host: 127.0.0.1}\n"
MODELS = {
    name: ServedModel(
        name=name,
        served_as=f"x/{name}",
        routes=frozenset({"chat"}),
        context_tokens=9,
        most_prompt_bytes=72,
        max_output_tokens=9,
        block_tokens=64,
    )
    for name in ("m", "n")
}


def loaded(*tenants: dict[str, Any], fleet: str = LOCAL) -> Loaded:
    files = {f"tenants.d/{one['id']}.yaml": yaml.safe_dump(one) for one in tenants}
    return read(fleet, "f.yaml", ENVIRON, files or None)


def config(*tenants: dict[str, Any], fleet: str = LOCAL) -> Config:
    return loaded(*tenants, fleet=fleet).config


def book(*tenants: dict[str, Any], fleet: str = LOCAL) -> Book:
    return make_book(config(*tenants, fleet=fleet), MODELS)


def head(*fields: tuple[str, str]) -> Head:
    made = {name.encode(): value.encode() for name, value in fields}
    return Head(b"POST", b"/v1/chat/completions", False, made, 2, False, False)


def refused(tenants: Tenants, *fields: tuple[str, str]) -> str:
    before = dict(tenants.failures)
    with pytest.raises(GatewayError) as caught:
        tenants.identify(head(*fields), "192.0.2.1")
    assert caught.value.reason in (Reason.BAD_KEY, Reason.AUTH_THROTTLED)
    (cause,) = (cause for cause, count in tenants.failures.items() if count != before[cause])
    return cause


def caller(made: Book, name: str) -> Caller:
    return Tenants(made, Throttle()).identify(head(("authorization", f"Bearer {secret(name)}")), "")


BLOCKED = tenant("blocked", key("old", state="blocked"), key("late", expires="2026-01-01T00:00:00Z"), key("good"))
DISABLED = tenant("gone", state="disabled")
GOOD = secret("good")

CREDENTIALS = {
    "missing": [(), (("accept", "*/*"),)],
    "malformed": [
        (("authorization", "Bearer"),), (("authorization", "Bearer "),), (("authorization", f"Basic {GOOD}"),),
        (("authorization", GOOD),), (("x-api-key", ""),), (("authorization", f"Basic {GOOD}"), ("x-api-key", GOOD)),
    ],
    "unknown": [
        (("x-api-key", GOOD[:-1]),), (("x-api-key", GOOD + "x"),), (("x-api-key", GOOD.upper()),),
        (("authorization", f"Bearer {hashlib.sha256(GOOD.encode()).hexdigest()}"),),
        (("x-api-key", "x" * 8000),), (("authorization", "Bearer ' OR 1=1 -- %s %n"),),
    ],
    "contradicting": [
        (("authorization", f"Bearer {GOOD}"), ("x-api-key", secret("old"))),
        (("authorization", f"Bearer {GOOD}"), ("x-api-key", "")),
    ],
    "blocked": [(("x-api-key", secret("old")),)],
    "expired": [(("x-api-key", secret("late")),)],
    "disabled": [(("x-api-key", secret("gone")),)],
}  # fmt: skip


@pytest.mark.parametrize("cause", CREDENTIALS)
def test_row_38_a_bad_key_is_counted_under_its_cause_and_answered_with_the_same_error(cause: str) -> None:
    tenants = Tenants(book(BLOCKED, DISABLED), Throttle())
    for fields in CREDENTIALS[cause]:
        assert refused(tenants, *fields) == cause, fields


@pytest.mark.parametrize(
    "fields",
    [
        [("authorization", f"Bearer {GOOD}")], [("authorization", f"bearer  {GOOD} ")], [("x-api-key", GOOD)],
        [("authorization", f"Bearer {GOOD}"), ("x-api-key", GOOD)],
    ],
)  # fmt: skip
def test_a_good_key_is_found_however_it_is_presented(fields: list[tuple[str, str]]) -> None:
    tenants = Tenants(book(BLOCKED, DISABLED), Throttle())
    found = tenants.identify(head(*fields), "")
    assert (found.tenant, found.key) == ("blocked", key("good")["id"])
    assert not any(tenants.failures.values())


def test_a_key_is_known_by_its_id_whether_it_opens_anything_or_not() -> None:
    """So that blocking one that the files have blocked meanwhile is done, and not told to be of nobody."""
    tenants = Tenants(book(BLOCKED, DISABLED), Throttle())
    assert all(tenants.knows(each["id"]) for one in (BLOCKED, DISABLED) for each in one["keys"])
    tenants.block([key("good")["id"]])
    assert tenants.knows(key("good")["id"]) and not tenants.knows("nobody") and not tenants.knows("")


def test_a_key_expires_by_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    end = datetime.datetime(2027, 2, 1, tzinfo=datetime.UTC)
    tenants = Tenants(book(tenant("acme", key("k", expires="2027-02-01T01:00:00+01:00"))), Throttle())
    present = head(("x-api-key", secret("k")))
    monkeypatch.setattr(time, "time", lambda: end.timestamp() - 0.001)
    assert tenants.identify(present, "").tenant == "acme"
    monkeypatch.setattr(time, "time", lambda: end.timestamp())
    assert refused(tenants, ("x-api-key", secret("k"))) == "expired"


def test_without_tenant_files_everybody_is_the_tenant_default_and_a_key_is_not_looked_at() -> None:
    tenants = Tenants(book(), Throttle())
    for fields in ((), (("x-api-key", "whatever"),), (("authorization", "Basic x"),)):
        found = tenants.identify(head(*fields), "")
        assert (found.tenant, found.key, dict(found.models)) == ("default", "", MODELS)
        assert (found.band, found.ceiling) == ("standard", "critical")
    assert refused(tenants, ("authorization", "Bearer a"), ("x-api-key", "b")) == "contradicting"


def test_what_is_set_for_all_tenants_holds_for_the_tenant_default() -> None:
    fleet = LOCAL + (
        "tenant_defaults: {class: batch, class_ceiling: standard, models: [{name: m, aliases: [x]}],"
        " allow: {routes: [tokenize]}}\n"
    )
    found = Tenants(book(fleet=fleet), Throttle()).identify(head(), "")
    assert (found.band, found.ceiling, found.routes) == ("batch", "standard", {"tokenize"})
    assert dict(found.models) == {"m": MODELS["m"], "x": MODELS["m"]}


def test_an_empty_folder_of_tenants_lets_nobody_in() -> None:
    tenants = Tenants(make_book(config().with_tenants({}), MODELS), Throttle())
    assert refused(tenants) == "missing"
    assert refused(tenants, ("x-api-key", "x")) == "unknown"


def test_a_caller_may_use_what_its_tenant_may() -> None:
    acme = tenant(
        "acme",
        models=[{"name": "n", "aliases": ["gpt", "m"]}],
        allow={"routes": ["tokenize"], "parameters": ["echo"], "media_hosts": ["a.example"]},
    )
    found = caller(book(acme), "acme")
    assert dict(found.models) == {"n": MODELS["n"], "gpt": MODELS["n"], "m": MODELS["n"]}
    assert (found.routes, found.rules.parameters, found.rules.media_hosts) == ({"tokenize"}, {"echo"}, {"a.example"})
    assert not found.rules.reject_unknown


CLASSES = ("critical", "interactive", "standard", "batch")


@pytest.mark.parametrize(
    ("own", "key_ceiling", "tenant_ceiling"), list(itertools.product(CLASSES, (*CLASSES, None), CLASSES))
)
def test_row_23_the_class_is_the_least_urgent_of_wish_key_ceiling_and_tenant_ceiling(
    own: str, key_ceiling: str | None, tenant_ceiling: str
) -> None:
    rank = CLASSES.index
    if rank(own) < rank(tenant_ceiling):
        return  # a load error
    fields = {"class_ceiling": key_ceiling} if key_ceiling else {}
    acme = tenant("acme", key("acme", **fields), **{"class": own, "class_ceiling": tenant_ceiling})
    loaded = config(acme)
    bands = loaded.settings().bands
    found = caller(make_book(loaded, MODELS), "acme")
    bound = max(rank(tenant_ceiling), rank(key_ceiling or tenant_ceiling))
    given = CLASSES[max(rank(own), bound)]
    assert urgency(None, found, bands) == Urgency(given)
    assert urgency(b"urgent!", found, bands) == Urgency(given, unknown=True)
    for wish in CLASSES:
        clamped = (wish, CLASSES[bound]) if rank(wish) < bound else None
        expected = Urgency(CLASSES[max(rank(wish), bound)], clamped)
        assert urgency(f"  {wish.upper()} ".encode(), found, bands) == expected


def test_row_32_no_two_isolation_domains_have_one_salt() -> None:
    secret_bytes = ENVIRON["SALT"].encode()
    domains = [
        ("shared", "tenant", "org-12345"), ("shared", "tenantorg-1", "2345"), ("shared", "tenant", "org-1"),
        ("shared", "tenantorg-12345", ""), ("shared", "tenant", "a"), ("shared", "group", "a"), ("shared", "key", "a"),
        ("finance", "tenant", "a"), ("sharedtenant", "", "a"), ("", "sharedtenant", "a"), ("shared", "", "tenanta"),
    ]  # fmt: skip
    salts = {cache_salt(secret_bytes, *domain) for domain in domains}
    assert len(salts) == len(domains)
    assert all(len(salt) == 43 and salt.replace("-", "").replace("_", "").isalnum() for salt in salts)
    assert cache_salt(secret_bytes + b"x", *domains[0]) not in salts


def test_a_cache_is_shared_by_the_keys_of_a_tenant_or_by_none_or_by_a_trust_group() -> None:
    fleet = LOCAL.replace('{SALT}"', '{SALT}", groups: {g: [c, d]}')
    shared = {"cache": {"isolation": "group", "group": "g"}}
    made = book(
        tenant("a", key("a1"), key("a2")),
        tenant("b", key("b1"), key("b2"), cache={"isolation": "key"}),
        tenant("c", **shared), tenant("d", **shared), tenant("g"), fleet=fleet,
    )  # fmt: skip
    salt = {name: caller(made, name).salt for name in ("a1", "a2", "b1", "b2", "c", "d", "g")}
    assert salt["a1"] == salt["a2"]
    assert salt["c"] == salt["d"]
    assert len({salt[name] for name in ("a1", "b1", "b2", "c", "g")}) == 5
    assert salt["a1"] == cache_salt(ENVIRON["SALT"].encode(), "shared", "tenant", "a")


def test_the_eleventh_failure_of_a_minute_waits_and_the_time_is_said() -> None:
    throttle = Throttle()
    assert [throttle.failed("192.0.2.1", 100.0) for _ in range(10)] == [0.0] * 10
    assert throttle.failed("192.0.2.1", 100.0) == pytest.approx(6.0)
    assert throttle.failed("192.0.2.1", 102.0) == pytest.approx(4.0)
    assert throttle.failed("192.0.2.2", 102.0) == 0.0
    assert throttle.failed("192.0.2.1", 106.001) == 0.0
    assert throttle.failed("192.0.2.1", 106.001) > 0.0
    assert [throttle.failed("192.0.2.1", 400.0) for _ in range(11)].count(0.0) == 10


def test_an_ipv6_client_counts_as_its_network() -> None:
    throttle = Throttle()
    for number in range(10):
        assert throttle.failed(f"2001:db8:1:2::{number:x}", 0.0) == 0.0
    assert throttle.failed("2001:db8:1:2:ffff::1%eth0", 0.0) > 0.0
    assert throttle.failed("2001:db8:1:3::1", 0.0) == 0.0
    assert throttle.failed("no:address", 0.0) == 0.0


def test_an_ipv4_client_in_the_clothes_of_ipv6_counts_as_itself() -> None:
    """All of them are of one /64: one that guesses must not have the others throttled."""
    throttle = Throttle()
    for _ in range(5):
        assert throttle.failed("::ffff:192.0.2.1", 0.0) == throttle.failed("192.0.2.1", 0.0) == 0.0
    assert throttle.failed("::ffff:192.0.2.1", 0.0) > 0.0
    assert throttle.failed("::ffff:192.0.2.2", 0.0) == 0.0


def test_the_throttle_remembers_a_bounded_number_of_addresses() -> None:
    throttle = Throttle()
    for _ in range(10):
        throttle.failed("first", 0.0)
    for number in range(ADDRESSES - 1):
        throttle.failed(str(number), 0.0)
    assert throttle.failed("first", 0.0) > 0.0  # seen again, so the last to be forgotten
    for number in range(ADDRESSES):
        throttle.failed(str(-1 - number), 0.0)
    assert len(throttle._used) == ADDRESSES
    assert throttle.failed("first", 0.0) == 0.0


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...


async def test_a_new_book_of_keys_is_in_force_for_heads_that_are_known_already() -> None:
    gateway = Gateway(loaded(tenant("acme")))
    tenants, old = gateway._services.tenants, gateway._services.tenants.book
    connection, wire = ClientConnection(gateway._shared), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    message = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        b"x-api-key: %b\r\ncontent-length: 2\r\n\r\n{}" % secret("acme").encode()
    )
    asked = []
    identify = tenants.identify
    tenants.identify = lambda head, client: asked.append(client) or identify(head, client)  # type: ignore[method-assign, func-returns-value]
    for _ in range(3):
        connection.data_received(message)
    await asyncio.sleep(0)  # what is written in a turn of the loop is written at its end
    assert wire.written.count(b"HTTP/1.1 400 ") == 3 and len(asked) == 1
    for new, status, times in ((replace(old), b"400", 2), (Book({}), b"401", 3)):
        tenants.book = new
        wire.written = b""
        connection.data_received(message)
        await asyncio.sleep(0)
        assert wire.written.startswith(b"HTTP/1.1 " + status) and len(asked) == times
    connection.connection_lost(None)


async def test_a_request_that_was_given_an_endpoint_of_another_partition_is_never_sent() -> None:
    """The core cannot do this. If it ever did, that would be found before a connection opens."""
    loaded_ = loaded(tenant("acme"))
    gateway, faults = Gateway(loaded_), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context["exception"]))
    gateway._dispatcher.handle(SettingsChanged(settings=loaded_.config.settings()))
    gateway._dispatcher.handle(EndpointUp(endpoint=loaded_.config.endpoints[0].described()))
    gateway._backends.by_name["e0"].partition = "finance"
    connection, wire = ClientConnection(gateway._shared), Wire()
    connection.connection_made(wire)  # type: ignore[arg-type]
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}]}'
    connection.data_received(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        b"x-api-key: %b\r\ncontent-length: %d\r\n\r\n%b" % (secret("acme").encode(), len(body), body)
    )
    await asyncio.sleep(0)
    assert wire.written.startswith(b"HTTP/1.1 500 ")
    assert [type(fault) for fault in faults] == [CrossedPartition]
    assert gateway._backends.counts() == (0, 0)
    assert [view.sequences for view in gateway.endpoints()] == [0]
    assert gateway.totals().failed == 1
    connection.connection_lost(None)
    gateway._dispatcher.close()


def test_c103_a_hundred_thousand_keys_are_looked_up_as_fast_as_ten() -> None:
    def steps(count: int) -> int:
        found = caller(book(tenant("acme")), "acme")
        keys = {hashlib.sha256(b"%d" % number).digest(): number for number in range(count)}
        entries = {digest: Entry(digest, found) for digest in keys}
        tenants, present = Tenants(Book(entries), Throttle()), head(("x-api-key", str(count - 1)))
        taken = 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal taken
            frame.f_trace_opcodes = True
            taken += event == "opcode"
            return trace

        sys.settrace(trace)
        try:
            tenants.identify(present, "")
        finally:
            sys.settrace(None)
        return taken

    assert steps(10) == steps(100_000) < 200
