"""The caller decides nothing but its own request: cases C101 and C104, beside T13 and row 33."""

from pathlib import Path

from tests.gateway.test_reload import Gate
from tests.journeys.served import ENGINE
from tests.journeys.test_isolation import ISOLATION, cached
from tests.kit.engines import Engine
from tests.kit.gateway import Gateway, config
from tests.kit.processes import until
from tests.kit.stage import stage
from tests.kit.tenants import tenant

# -- C101


async def test_c101_a_probe_of_eight_tokens_at_a_time_finds_nothing_of_another_tenant(tmp_path: Path) -> None:
    """Neither in a shared pool nor, with the same prompt, in a partition of another's own; the owner finds its own."""
    folders = [tmp_path / name for name in ("shared", "own", "gateway")]
    for folder in folders:
        folder.mkdir()
    async with Engine(folders[0], arguments=ENGINE) as one, Engine(folders[1], arguments=ENGINE) as other:
        made = config(
            [one.url, other.url], isolation=ISOLATION, partitions={"finance": {"mode": "hard", "tenants": ["bank"]}}
        )
        made["endpoints"][1]["partition"] = "finance"
        tenants = [tenant("a"), tenant("b"), tenant("bank", partition="finance"),
                   *(tenant(name, cache={"isolation": "group", "group": "research"}) for name in "de")]  # fmt: skip
        async with Gateway(made, folders[2], tenants=tenants) as gateway:
            secret = "the password of the vault is in these words, which nobody else may find: " * 12
            for victim in ("a", "bank"):
                assert await cached(gateway, victim, secret) == (0, 0)
            never_asked = secret.replace("vault", "house")
            for words in range(8, 96, 8):  # it has guessed right so far, and sees no more than where nobody has asked
                guesses = [" ".join(each.split()[:words]) for each in (secret, never_asked)]
                right, wrong = [(await cached(gateway, "b", guess))[0] for guess in guesses]
                assert right == wrong, words
            for victim in ("a", "bank"):
                in_engine, in_index = await cached(gateway, victim, secret)
                assert in_engine > 100 and in_index > 100


# -- C104


LONG = "x" * 200


async def test_c104_an_abort_ends_that_request_and_none_whose_id_is_like_it(tmp_path: Path) -> None:
    """Clients send `a`, `ab`, `ab` again and 200 characters; each in turn leaves."""
    async with stage(tmp_path, endpoint={"max_seqs": 16}, timeouts={"scale": 1}) as made, made.holding():
        names = ["a", "ab", "ab", LONG, "a-1", "A"]
        for leaving in range(len(names)):
            gate = Gate()
            made.engine.answer = gate.answer
            made.engine.clear()
            streams = []
            for number, name in enumerate(names):
                stream = await made.begin("chat", f"n{number}", stream=True, extra=[("x-request-id", name)])
                await stream.read_until(b"data:")
                streams.append(stream)
            ids = [seen.header("x-request-id") or "" for seen in made.engine.seen]
            assert len(set(ids)) == len(names) and {len(each) for each in ids} == {26}
            assert not set(ids) & set(names)
            streams[leaving].reset()
            await until(lambda: any(seen.aborted for seen in made.engine.seen), 2.0, "the engine was not told")
            assert [seen.aborted for seen in made.engine.seen] == [number == leaving for number in range(len(names))]
            gate.open.set()
            for number, stream in enumerate(streams):
                if number != leaving:
                    answer = await stream.response()
                    assert (answer.status, f"n{number}".encode() in answer.body) == (200, True)
                    echoed = answer.header("x-request-id") or ""
                    assert (echoed == names[number]) == (len(names[number]) <= 128)
                    stream.close()


# -- whose address it is


CHAINS = {
    "203.0.113.7": "203.0.113.7",
    "203.0.113.7, 10.0.0.9": "203.0.113.7",  # a balancer before the last proxy
    "192.0.2.1, 203.0.113.7,10.0.0.9 , 10.0.0.8": "203.0.113.7",  # the first the client has written itself
    "10.1.2.3, 10.0.0.9": "10.1.2.3",  # somebody inside
    "2001:db8::1, 10.0.0.9": "2001:db8::1",
    "nonsense, 10.0.0.9": "10.0.0.9",
    "nonsense": "127.0.0.1",
    "": "127.0.0.1",
}


async def test_a_chain_of_trusted_proxies_names_the_client_before_them(tmp_path: Path) -> None:
    listen = {"host": "127.0.0.1", "trusted_proxies": ["127.0.0.0/8", "10.0.0.0/8"]}
    async with stage(tmp_path, listen=listen) as made, made.holding():
        for told, client in CHAINS.items():
            answer = await made.ask("chat", "x", extra=[("x-forwarded-for", told)])
            mine = answer.header("x-forebay-request-id")
            await until(lambda: mine in {line["request_id"] for line in made.gateway.access()}, 3, "no line")  # noqa: B023
            (line,) = [line for line in made.gateway.access() if line["request_id"] == mine]
            assert line["client"] == client, told
