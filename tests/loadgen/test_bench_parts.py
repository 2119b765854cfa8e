"""The small parts of `forebay bench`: options, keys, folders, exposition text, sizes of prompts, Ctrl-C."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from loadgen.bench import exposition
from loadgen.bench.exits import BenchError
from loadgen.bench.keys import Keys, keys, scrubbed
from loadgen.bench.lengths import sizes_of
from loadgen.bench.options import duration, shown
from loadgen.bench.scrape import Page
from loadgen.bench.stop import GRACE_S, Stop
from loadgen.client import Target
from loadgen.client.route import Pools, routes_to
from loadgen.report.place import PlaceError, folder

KEY = "fbk-abcdefghijkl-0123456789012345678901234567890123456789012"


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("30s", 30.0), ("1.5m", 90.0)])
def test_durations_have_units(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["30", "s", "-1s", "1h", "1 s", ""])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="500ms, 30s or 10m"):
        duration(text)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:secret@host:80/v1?key=secret", "http://host:80/v1"),
        ("https://host", "https://host"),
        ("http://secret@secret@host/x", "http://host/x"),
    ],
)
def test_a_url_is_shown_without_what_is_secret_in_it(url: str, text: str) -> None:
    assert shown(url) == text


def test_keys_come_from_the_file_and_then_from_variables(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"chat: {KEY}\n")
    made = keys(file, {"chat": "CHAT", "docs": "DOCS", "jobs": "JOBS"}, {"CHAT": "unused", "DOCS": "from-docs"})
    assert (made.of("chat"), made.of("docs"), made.of("anybody")) == (KEY, "from-docs", "")
    assert "keys.yaml" in made.advice("chat")
    assert made.advice("docs") == "its key comes from the variable DOCS"
    file.write_text(f"chat: {KEY}\n'*': other\n")
    assert keys(file, {"docs": "DOCS"}, {"DOCS": "unused"}).of("docs") == "other"
    alone = keys(None, {"jobs": "JOBS"}, {})
    assert alone.of("jobs") == "" and alone.advice("jobs").endswith("JOBS, which is not set")
    assert "--keys FILE" in alone.advice("chat")


@pytest.mark.parametrize("text", ["- a\n", "chat: {a: 1}\n", "chat: [secret-of-chat\n", "chat: 12\n"])
def test_a_file_of_keys_that_is_none_does_not_show_what_is_in_it(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(BenchError, match="not a mapping") as caught:
        keys(file, {}, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (f"chat: {KEY}\njobbs: {KEY}\n", ":2:1: ", "there are chat, jobs; did you mean 'jobs'?"),
        (f"# mine\n'*': {KEY}\nnobody: {KEY}\n", ":3:1: ", "there are chat, jobs"),
        (f"{KEY}: chat\n", ":1:1: ", "no tenant of the scenario is called that"),
        ("chat: 12\n", ":1:1: ", "both of them text"),
        (f"chat: a\nchat: {KEY}\n", ":2:1: ", "each tenant once"),
    ],
)
def test_what_is_wrong_in_a_file_of_keys_is_told_by_its_place_alone(
    tmp_path: Path, text: str, place: str, said: str
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(BenchError) as caught:
        keys(file, {}, {}, ("chat", "jobs"))
    assert str(caught.value).startswith(f"--keys {file}{place}") and said in str(caught.value)
    assert KEY not in str(caught.value)


def test_tenants_that_a_file_of_keys_lacks_are_named(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"chat: {KEY}\n")
    made = keys(file, {"docs": "DOCS"}, {"DOCS": KEY}, ("chat", "docs", "jobs"))
    assert (
        made.warning(("chat", "docs", "jobs", "probe")) == f"--keys {file} has no key for jobs, probe: sent without one"
    )
    assert "has none for it" in made.advice("jobs") and "--keys FILE" not in made.advice("jobs")
    assert made.warning(("chat", "docs")) == "" == keys(None, {}, {}).warning(("chat",))
    file.write_text(f"chat: {KEY}\n'*': {KEY}\n")
    assert keys(file, {}, {}).warning(("chat", "jobs")) == ""


def test_a_key_that_no_header_carries_is_refused_unseen() -> None:
    with pytest.raises(BenchError, match="key of tenant chat, from the variable X") as caught:
        keys(None, {"chat": "X"}, {"X": "secret\nwith a line"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: [key]."),
        (f"no: {KEY[:20]}", "no: [key]"),  # cut off at 80 characters
        (f"{KEY}{KEY}", "[key][key]"),
        ("nothing of it: f", "nothing of it: f"),
    ],
)
def test_servers_that_repeat_a_key_are_not_repeated(text: str, safe: str) -> None:
    assert scrubbed(text, [KEY]) == safe
    assert Keys({"chat": KEY}, {}).scrubbed(text) == safe


def test_a_folder_is_named_by_time_and_scenario_and_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with folder(None, "my chat/../x", 0.0) as made:
        assert re.fullmatch(r"runs/19700101T000000Z-my-chat-\.\.-x-[0-9a-f]{6}", str(made))
        assert made.is_dir() and not list(made.iterdir())
        (made / "schedule.jsonl.gz").touch()
    assert not made.exists()
    with folder(made, "chat", 0.0):
        (made / "run.json").touch()
    assert made.is_dir()
    (made / "requests.jsonl").touch()
    with pytest.raises(PlaceError, match="of another run is there"), folder(made, "chat", 0.0):
        pass
    with (
        pytest.raises(PlaceError, match="name a folder that can be made"),
        folder(made / "requests.jsonl" / "x", "chat", 0.0),
    ):
        pass


def test_a_run_that_did_not_begin_leaves_nothing_that_was_not_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BenchError, match="preflight"), folder(None, "chat", 0.0) as made:
        (made / "schedule.jsonl.gz").touch()
        raise BenchError("preflight")
    assert not list(tmp_path.iterdir()), "runs is gone too"
    with folder(Path("a/b/c"), "chat", 0.0):
        (tmp_path / "a" / "of-somebody-else").touch()
    assert sorted(one.name for one in (tmp_path / "a").iterdir()) == ["of-somebody-else"]
    ours = tmp_path / "ours"
    ours.mkdir()
    with folder(ours, "chat", 0.0):
        (ours / "schedule.jsonl.gz").touch()
    assert ours.is_dir() and not list(ours.iterdir())
    (ours / "schedule.jsonl.gz").touch()
    with folder(ours, "chat", 0.0):
        pass
    assert [one.name for one in ours.iterdir()] == ["schedule.jsonl.gz"]


@pytest.mark.parametrize(
    ("url", "scraped", "name"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/metrics", "http://127.0.0.1:8000"),
        ("http://host:8000/v1", "http://host:8000/", "http://host:8000"),
        ("https://me:secret@Host/llm/v1/", "https://host/llm/metrics?key=secret", "https://host/llm"),
        ("http://[::1]:8000", "http://[::1]:8000/metrics/", "http://[::1]:8000"),
    ],
)
async def test_a_server_has_one_name_whether_requests_or_its_metrics_tell_of_it(
    url: str, scraped: str, name: str
) -> None:
    async with aiohttp.ClientSession() as session:
        assert Page(session, scraped).name == name
    one, _ = routes_to([Target(url=url, model="m"), Target(url="http://other", model="m")], Pools(1.0), "none")
    assert one.endpoint == name


PAGE = """# HELP a_total Words.
# TYPE a_total counter
a_total{tenant="x \\"{y}\\"",kind="p"} 3
a_total{tenant="z",kind="p"} 4 1700000000
a_total{tenant="z",kind="q"} 1e2
a_total_other 9
g 1.5
n NaN
h_bucket{le="0.1"} 90
h_bucket{le="0.5"} 99
h_bucket{le="+Inf"} 100
h_count 100
torn{a="
"""
NAMES = ("a_total", "g", "n", "h_bucket", "torn")


def test_an_exposition_page_is_read_by_name_and_label() -> None:
    found = exposition.read(PAGE, NAMES)
    assert set(found) == {"a_total", "g", "h_bucket"}
    assert exposition.total(found, "a_total") == 107
    assert exposition.total(found, "a_total", kind="p") == 7
    assert exposition.total(found, "a_total", tenant="w") is None
    assert exposition.total(found, "g") == 1.5


def test_percentiles_of_histograms_are_bounds_of_their_buckets() -> None:
    found = exposition.read(PAGE, NAMES)
    assert [exposition.above(found, "h", share) for share in (0.5, 0.9, 0.99, 1.0)] == [0.1, 0.1, 0.5, float("inf")]
    assert exposition.above(found, "g", 0.5) is None
    assert exposition.above(exposition.grown(found, found), "h", 0.99) is None, "nothing since"


def test_counters_grow_and_begin_anew() -> None:
    before = exposition.read('a_total{x="1"} 5\na_total{x="2"} 9\n', NAMES)
    now = exposition.read('a_total{x="1"} 8\na_total{x="2"} 1\na_total{x="3"} 2\n', NAMES)
    assert sorted(value for _, value in exposition.grown(now, before)["a_total"]) == [1, 2, 3]


def test_prompts_are_written_with_as_many_words_as_the_tokenizer_takes() -> None:
    exact = sizes_of([(50, 50, 0), (130, 130, 0), (514, 514, 0)])
    assert (exact.words, exact.residual, exact.template_tokens) == (1.0, 0.0, 0)
    # 1.25 tokens a word, and a template of 30 of which the cache had 16
    real = sizes_of([(size, round(1.25 * size + 30), 0 if size == 48 else 16) for size in (48, 128, 256, 512, 1024)])
    assert real.words == pytest.approx(0.8, abs=0.002)
    assert real.template_tokens == 16
    assert real.real(1000) == pytest.approx(1030, abs=3)
    assert 0.05 < real.residual < 0.1, "the template stays"
    silent = sizes_of([(size, round(1.25 * size + 30), None) for size in (48, 128, 256, 512, 1024)])
    assert 30 <= silent.template_tokens <= 33, "at most what is counted beyond what was written"
    assert sizes_of([]).words == 1.0


class Sender:
    def __init__(self) -> None:
        self.graces: list[float] = []

    def stop(self, grace_s: float) -> None:
        self.graces.append(grace_s)


async def test_the_first_ctrl_c_gives_grace_and_the_second_none() -> None:
    said: list[str] = []
    stop, sender, late = Stop(said.append), Sender(), Sender()
    stop.sending(sender)
    stop.ask()
    assert sender.graces == [GRACE_S] and "Ctrl-C again" in said[0]
    stop.ask()
    assert sender.graces == [GRACE_S, 0.0] and len(said) == 1
    stop.sending(late)
    assert late.graces == [0.0], "what would only begin ends at once"


async def test_before_anything_is_sent_ctrl_c_ends_the_command() -> None:
    stop = Stop(lambda text: None)

    async def work() -> None:
        stop.install()
        await asyncio.sleep(10)

    running = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    stop.ask()
    with pytest.raises(asyncio.CancelledError):
        await running
