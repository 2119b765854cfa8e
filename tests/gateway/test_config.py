"""The strict loader: what it takes, and the exact words and places of everything it refuses."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import Config, ConfigErrors, load, load_document, read, schema
from gateway.config.reference import renewed
from gateway.config.show import show
from policies.types import Affinity, Band, Fairness, Pool

ROOT = Path(__file__).parents[2]
SALT = "0123456789abcdef0123456789abcdef"
ENVIRON = {"SALT": SALT, "KEY": "k-1", "SHORT": "abc", "SPLIT": "a\r\nb: c", "EMPTY": ""}

GOOD = """\
version: 1
listen: {host: 127.0.0.1, port: 8081}
admin: {port: 9091}
models:
  m: {context_tokens: 4096}
pools:
  p: {model: m}
endpoints:
  - {name: e0, url: "http://10.0.0.1:8000", pools: [p]}
  - {name: e1, url: "http://10.0.0.2:8000", pools: [p]}
"""


def parsed(text: str, environ: Mapping[str, str] = ENVIRON) -> Config:
    return read(text, "f.yaml", environ).config


def errors_of(text: str, environ: Mapping[str, str] = ENVIRON) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        read(text, "f.yaml", environ)
    return [str(error).removeprefix("f.yaml:") for error in caught.value.errors]


def with_line(number: int, line: str) -> str:
    """GOOD with one of its lines (from 1) replaced."""
    lines = GOOD.splitlines()
    lines[number - 1 : number] = [line]
    return "\n".join(lines) + "\n"


def refusals() -> Iterator[tuple[int, str, list[str]]]:
    """The cases of config_errors.txt."""
    text = Path(__file__).with_name("config_errors.txt").read_text(encoding="utf-8")
    for case in text.split("\n\n"):
        lines = [line for line in case.splitlines() if not line.startswith("#")]
        if lines:
            number, _, line = lines[0].partition(" | ")
            yield int(number), line.replace("⏎", "\n").replace("␇", "\x07"), [error.strip() for error in lines[1:]]


REFUSALS = list(refusals())


@pytest.mark.parametrize(("number", "line", "expected"), REFUSALS, ids=[line.strip() for _, line, _ in REFUSALS])
def test_what_is_wrong_is_said_in_these_words_at_this_place(number: int, line: str, expected: list[str]) -> None:
    assert errors_of(with_line(number, line)) == expected


def test_the_table_of_errors_is_read_whole() -> None:
    assert len(REFUSALS) >= 95
    assert all(expected for _, _, expected in REFUSALS)


def test_the_good_file_is_good() -> None:
    config = parsed(GOOD)
    assert config.listen.port == 8081
    assert [endpoint.name for endpoint in config.endpoints] == ["e0", "e1"]


def test_all_errors_come_in_one_run_in_the_order_of_the_file() -> None:
    text = """\
version: 2
listen: {prot: 3, port: yes}
models:
  a: {context_tokens: x, kin: chat}
pools:
  p: {model: b}
endpoints:
  - {name: &x s0, url: "http://u:p@10.0.0.1:80", pools: [q], api_key: "${NOPE}"}
  - {name: *x, url: "ftp://10.0.0.1:80", pools: main}
  - {name: s0, name: s1, url: "http://10.0.0.1:80"}
admission: {drain_lag_s: -1}
version: 1
"""
    paths = [error.split(": ")[1] for error in errors_of(text)]
    assert paths == [
        "version",
        "listen.host",
        "listen.prot",
        "listen.port",
        "models.a",
        "models.a.context_tokens",
        "models.a.kin",
        "pools.p.model",
        "endpoints[0].name",
        "endpoints[0].url",
        "endpoints[0].pools[0]",
        "endpoints[0].api_key",
        "endpoints[1].name",
        "endpoints[1].url",
        "endpoints[1].pools",
        "endpoints[2].pools",
        "endpoints[2].name",
        "endpoints[2].name",
        "admission.drain_lag_s",
        "version",
    ]


def test_an_empty_file_lacks_everything_that_is_required() -> None:
    paths = [error.split(": ")[1] for error in errors_of("# nothing yet\n")]
    assert paths == ["endpoints", "listen.host", "models", "pools", "version"]


def test_nothing_may_be_served_by_nobody() -> None:
    text = "version: 1\nlisten: {host: localhost}\nmodels: {}\npools: {}\nendpoints: []\n"
    assert errors_of(text) == [
        "3:9: models: must not be empty",
        "4:8: pools: must not be empty",
        "5:12: endpoints: must not be empty",
    ]


def test_a_fifth_pool_of_a_model_is_refused() -> None:
    pools = "".join(f"  p{number}: {{model: m}}\n" for number in range(5))
    text = f"version: 1\nlisten: {{host: 127.0.0.1}}\nmodels: {{m: {{context_tokens: 9}}}}\npools:\n{pools}"
    text += 'endpoints: [{name: e, url: "http://h:1", pools: [p0, p1, p2, p3, p4]}]\n'
    assert errors_of(text) == ["9:15: pools.p4.model: more than 4 pools for model 'm'"]


@pytest.mark.parametrize("ids", [("a", "a"), ("a", "b")])
def test_two_admin_tokens_differ_in_name_and_hash(ids: tuple[str, str]) -> None:
    line = "".join(f"{{id: {name}, sha256: {'ab' * 32}, role: read}}, " for name in ids)
    same = ids[0] == ids[1]
    assert [error.split(": ", 1)[1] for error in errors_of(with_line(3, f"admin: {{tokens: [{line}]}}"))] == [
        *(["admin.tokens[1].id: another token has this id"] if same else []),
        "admin.tokens[1].sha256: another token has this hash",
    ]


def test_a_file_that_cannot_be_read_is_an_error_like_any_other(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    big.write_text("#" * 2**20 + "\n")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"version: 1\n# caf\xe9\n")
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)  # nobody writes to it: who opened it would wait
    cases = {
        tmp_path / "none.yaml": f"{tmp_path}/none.yaml: cannot be read: No such file or directory",
        pipe: f"{pipe}: cannot be read: a named pipe, not a file",
        Path("/dev/zero"): "/dev/zero: cannot be read: a device, not a file",
        tmp_path: f"{tmp_path}: cannot be read: Is a directory",
        big: f"{big}: larger than 1 MiB",
        latin: f"{latin}:2:6: not UTF-8",
    }
    for path, expected in cases.items():
        with pytest.raises(ConfigErrors) as caught:
            load(path, {})
        assert str(caught.value) == expected


def test_a_file_of_exactly_one_mebibyte_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    head = b"\xef\xbb\xbf" + GOOD.encode()
    path.write_bytes(head + b"#" * (2**20 - len(head)))
    assert load(path, {}).listen.port == 8081


def test_yaml_scalars_are_what_version_1_2_says() -> None:
    config = parsed(
        with_line(2, "listen: {host: 127.0.0.1, port: 010, allow_anonymous: TRUE, hosts: [yes, 12e, no, a]}")
    )
    assert config.listen.port == 10
    assert config.listen.allow_anonymous is True
    assert config.listen.hosts == ("yes", "12e", "no", "a")
    assert parsed(with_line(2, "listen: {host: 127.0.0.1, port: 0x1F90}")).listen.port == 8080
    assert parsed(with_line(3, "telemetry: {journal: 2026-11-29}")).telemetry.journal == "2026-11-29"
    assert parsed(with_line(3, "telemetry: {journal: ~}")).telemetry.journal is None
    assert parsed(with_line(3, "timeouts: {connect_s: 5e-1, idle_s: 7}")).timeouts.connect_s == 0.5


def test_sizes_have_units_and_become_bytes() -> None:
    config = parsed(with_line(3, "limits: {body_bytes: 2MiB, header_bytes: 8190B, stream_buffer_bytes: 65536}"))
    assert (config.limits.body_bytes, config.limits.header_bytes) == (2 * 2**20, 8190)
    assert config.limits.stream_buffer_bytes == 65536
    assert parsed(with_line(3, "admission: {max_queued_bytes: 64GiB}")).admission.max_queued_bytes == 64 * 2**30


def test_defaults_are_those_of_the_design() -> None:
    config = parsed(GOOD)
    endpoint, model = config.endpoints[0], config.models["m"]
    assert (endpoint.engine, endpoint.max_seqs, endpoint.max_prefill_tokens, endpoint.api_key) == (
        "vllm",
        256,
        8192,
        None,
    )
    assert (model.served_as, model.kind, model.max_output_tokens) == ("m", "chat", 4096)
    assert parsed(with_line(5, "  m: {context_tokens: 131072}")).models["m"].max_output_tokens == 8192
    assert 16 <= config.listen.max_connections <= 1_000_000
    assert [(name, band.queue_timeout_s, band.max_queued) for name, band in config.classes] == [
        ("critical", 30, 512),
        ("interactive", 30, 5000),
        ("standard", 60, 5000),
        ("batch", 300, 5000),
    ]
    assert config.tenant_defaults.allow.parameters == ("chat_template_kwargs",)


def test_one_field_of_a_class_leaves_the_other_at_its_own_default() -> None:
    config = parsed(with_line(3, "classes: {batch: {max_queued: 7}}"))
    assert (config.classes.batch.queue_timeout_s, config.classes.batch.max_queued) == (300, 7)


def test_secrets_come_from_the_environment_whole_or_inside_other_text() -> None:
    config = parsed(with_line(3, 'isolation: {salt_secret: "x${SALT}"}'))
    assert config.isolation.salt_secret == f"x{SALT}".encode()
    keyed = '  - {name: e1, url: "http://10.0.0.2:8000", pools: [p], api_key: "${KEY}-${KEY}"}'
    assert parsed(with_line(10, keyed)).endpoints[1].api_key == "k-1-k-1"


def test_the_salt_secret_is_random_where_none_is_given() -> None:
    first, second = parsed(GOOD).isolation.salt_secret, parsed(GOOD).isolation.salt_secret
    assert len(first) == 32
    assert first != second


def test_no_secret_appears_in_a_repr_a_dump_or_an_error() -> None:
    text = with_line(3, f"isolation: {{salt_secret: {SALT}}}")
    text = text.replace("pools: [p]}", "pools: [p], api_key: hunter2}")
    config = parsed(text)
    assert config.endpoints[0].api_key == "hunter2"
    assert "hunter2" not in repr(config)
    assert SALT not in repr(config)
    assert all(secret not in config.model_dump_json() for secret in ("hunter2", SALT))
    assert parsed(GOOD).model_dump(mode="json")["listen"]["port"] == 8081
    wrong = text.replace("hunter2", '"hunter2 "').replace(SALT, "hunter2short")
    assert "hunter2" not in "".join(errors_of(wrong))


@pytest.mark.parametrize(
    ("url", "tls", "host", "port", "authority"),
    [
        ("http://10.0.0.9:8000", False, "10.0.0.9", 8000, "10.0.0.9:8000"),
        ("http://Engine-1.internal:8000/", False, "engine-1.internal", 8000, "engine-1.internal:8000"),
        ("https://[2001:db8::1]:8443", True, "2001:db8::1", 8443, "[2001:db8::1]:8443"),
        ("https://engine", True, "engine", 443, "engine"),
        ("http://engine", False, "engine", 80, "engine"),
        ("http://engine:443", False, "engine", 443, "engine:443"),
    ],
)
def test_an_engines_url_is_taken_apart(url: str, tls: bool, host: str, port: int, authority: str) -> None:
    endpoint = parsed(with_line(10, f'  - {{name: e1, url: "{url}", pools: [p]}}')).endpoints[1]
    assert (endpoint.tls, endpoint.host, endpoint.port, endpoint.authority) == (tls, host, port, authority)


def test_names_of_headers_and_hosts_are_lower_case_in_the_program() -> None:
    config = parsed(
        with_line(3, "upstream: {forward_headers: [X-Trace]}").replace("port: 8081", "hosts: [API.example]")
    )
    assert config.upstream.forward_headers == ("x-trace",)
    assert config.listen.hosts == ("api.example",)


def test_every_timer_is_scaled_and_nothing_else() -> None:
    plain, scaled = parsed(GOOD), parsed(with_line(3, "timeouts: {scale: 0.1}"))
    before, after = dataclasses.asdict(plain.timers()), dataclasses.asdict(scaled.timers())
    assert after == {name: pytest.approx(seconds * 0.1) for name, seconds in before.items()}
    assert (before["total_s"], before["tls_s"], before["keepalive_idle_s"]) == (1800, 2, 75)
    assert scaled.settings().bands["batch"].queue_timeout_s == pytest.approx(30)
    assert scaled.settings().timer_scale == 0.1
    assert scaled.admission.max_queued == plain.admission.max_queued == 10000


def test_the_core_gets_its_settings() -> None:
    settings = parsed(with_line(3, "retries: {max_attempts: 3}")).settings(seed=7)
    assert settings.pools == {"p": Pool(name="p", model="m")}
    assert settings.bands["critical"] == Band(
        name="critical",
        rank=0,
        queue_timeout_s=30,
        max_queued=512,
        slo_ttft_s=0.4,
        slo_itl_s=0.05,
        on_late="reject",
        age_after_s=5,
        reserved=0.05,
    )
    assert settings.bands["batch"] == Band(
        name="batch",
        rank=3,
        queue_timeout_s=300,
        max_queued=5000,
        sheddable=True,
        age_after_s=120,
        ceiling=0.85,
        min_share=0.05,
    )
    assert settings.fairness == Fairness()
    assert [band.rank for band in settings.bands.values()] == [0, 1, 2, 3]
    assert (settings.max_attempts, settings.max_queued_bytes, settings.seed) == (3, 512 * 2**20, 7)
    assert settings.timer_scale == 1
    assert (settings.ordering, settings.shed, settings.length) == ("by_length", "auto", "learned")
    assert settings.affinity == Affinity()


def test_what_is_set_about_scheduling_reaches_the_core() -> None:
    text = with_line(7, "  p: {model: m, max_total_tokens: 4096, borrow: [q], lanes: fixed, long_prompt_tokens: 2048}")
    text = text.replace("endpoints:", "  q: {model: m, lanes: off}\nendpoints:").replace(
        "[p]}", "[p, q], long_lanes: 0}"
    )
    text += """\
classes:
  standard: {sheddable: true, on_late: downgrade, age_after_s: 20, slo: {ttft_ms: 500, ttft_per_token_ms: 1, free_tokens: 9}}
  critical: {slo: {itl_ms: null}}
admission: {ordering: edf, shed: llmd}
length: {kind: declared}
affinity: {block_tokens: 32, index_bytes: 1MiB, ttl_s: 60, max_load_ratio: 2, kv_tiers: 4}
timeouts: {scale: 0.1}
"""
    config = parsed(text)
    settings = config.settings()
    assert settings.pools["p"] == Pool(
        name="p", model="m", max_total_tokens=4096, borrow=("q",), lanes="fixed", long_prompt_tokens=2048
    )
    assert settings.pools["q"] == Pool(name="q", model="m", lanes="off")
    standard = settings.bands["standard"]
    assert (standard.sheddable, standard.on_late, standard.free_tokens) == (True, "downgrade", 9)
    times = (standard.slo_ttft_s, standard.slo_itl_s, standard.ttft_per_token_s, standard.age_after_s)
    assert times == pytest.approx((0.05, 0.01, 0.0001, 2))
    assert (settings.bands["critical"].slo_ttft_s, settings.bands["critical"].slo_itl_s) == (pytest.approx(0.04), 0)
    assert (settings.ordering, settings.shed, settings.length) == ("edf", "llmd", "declared")
    assert settings.affinity == Affinity(
        block_tokens=32, index_bytes=2**20, ttl_s=pytest.approx(6), max_load_ratio=2, kv_tiers=4
    )
    assert config.endpoints[0].described().long_lanes == 0


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("standard: {ceiling: 0.97}", "classes.standard.ceiling: 0.97 is more than that of a more urgent class, 0.95"),
        (
            "critical: {ceiling: 0.9}",
            "classes: interactive.ceiling: 0.95 is more than that of a more urgent class, 0.9",
        ),
        (
            "critical: {reserved: 0.2}",
            "classes: interactive.ceiling: 0.95 is more than more urgent classes leave: 0.2 is reserved",
        ),
        ("standard: {min_share: 0.46}", "classes: min_share of all classes is 0.51, more than 0.5"),
    ],
)
def test_classes_do_not_promise_what_others_hold(classes: str, message: str) -> None:
    text = GOOD + "classes:\n  " + classes + "\n"
    assert [error.split(": ", 1)[1] for error in errors_of(text)] == [message]


def test_what_requests_cost_is_not_set_where_nothing_counts_it() -> None:
    text = GOOD + "admission: {fairness: {kind: round_robin, quantum: 512}}\n"
    assert [error.split(": ", 1)[1] for error in errors_of(text)] == [
        "admission.fairness.quantum: means nothing with kind: round_robin, where every request costs the same"
    ]
    text = GOOD + "admission: {fairness: {quantum: 512, input: 2, cached: 0, output: 4}}\n"
    assert parsed(text).settings().fairness == Fairness(quantum=512, input=2.0, cached=0.0, output=4.0)


def test_somebody_takes_the_long_prompts_of_every_pool() -> None:
    text = GOOD.replace("[p]}", "[p], long_lanes: 0}")
    message = "all its endpoints have long_lanes: 0 and it borrows from none: nobody would take a long prompt"
    assert errors_of(text) == [f"7:3: pools.p: {message}"]
    assert errors_of(text.replace("  p: {", "  p: {lanes: fixed, ")) == [f"7:3: pools.p: {message}"]
    assert parsed(text.replace("  p: {", "  p: {lanes: off, ")).pools["p"].lanes == "off"
    assert parsed(text.replace("long_lanes: 0", "long_lanes: 1", 1)).endpoints[1].long_lanes == 0


def test_a_pool_borrows_only_from_others_of_its_model() -> None:
    text = """\
version: 1
listen: {host: 127.0.0.1}
models: {m: {context_tokens: 9}, n: {context_tokens: 9}}
pools:
  p: {model: m, borrow: [q, r, r]}
  q: {model: n}
  r: {model: m}
endpoints: [{name: e, url: "http://h:1", pools: [p, q, r]}]
"""
    assert errors_of(text) == [
        "5:26: pools.p.borrow[0]: pool 'q' serves another model, 'n'",
        "5:32: pools.p.borrow[2]: pool 'r' is named twice",
    ]


def test_an_endpoint_keeps_the_pools_it_is_in_in_the_order_of_the_file() -> None:
    config = parsed(
        with_line(7, "  p: {model: m}\n  q: {model: m}").replace('2:8000", pools: [p]', '2:8000", pools: [q, p]')
    )
    assert config.endpoints[1].described().pools == ("q", "p")


def test_show_is_the_same_configuration_again_with_the_origin_of_each_value() -> None:
    text = with_line(3, "limits: {body_bytes: 2MiB}\ntimeouts: {idle_s: 0.125}\nadmission: {max_queued_bytes: 3MiB}")
    loaded = read(text, "f.yaml", ENVIRON)
    shown = show(loaded)
    again = parsed(
        "\n".join(
            line
            for line in shown.splitlines()
            if line != "isolation:" and not line.startswith(("  salt_secret:", "  groups:"))
        )
    )
    assert again.model_copy(update={"isolation": loaded.config.isolation}) == loaded.config
    origins = {line.split(":")[0].strip(): line.rpartition("# ")[2] for line in shown.splitlines() if "#" in line}
    assert origins["body_bytes"] == "f.yaml:3"
    assert origins["idle_s"] == "f.yaml:4"
    assert origins["total_s"] == "default"
    assert origins["max_connections"].startswith("default: ")


def test_show_hides_secrets_and_names_their_variables() -> None:
    text = with_line(
        3, f'isolation: {{salt_secret: "${{SALT}}"}}\nadmin: {{tokens: [{{id: a, sha256: {"ab" * 32}, role: read}}]}}'
    )
    text = text.replace("pools: [p]}", "pools: [p], api_key: hunter2}", 1).replace(
        "pools: [p]}", 'pools: [p], api_key: "hunter2${KEY}"}'
    )
    shown = show(read(text, "f.yaml", ENVIRON))
    assert 'salt_secret: "${SALT}"' in shown
    assert shown.count('api_key: "(redacted)"') == 2
    assert 'sha256: "(redacted)"' in shown
    assert all(secret not in shown for secret in ("hunter2", SALT, "abab"))


def test_the_page_on_configuration_is_made_from_the_schema() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == renewed(page), "run: make docs"


def test_every_field_of_the_schema_says_what_it_is_for() -> None:
    for name, section in schema()["$defs"].items():
        for field, words in section["properties"].items():
            assert words.get("description") or "$ref" in words, f"{name}.{field}"


def test_the_schema_is_plain_json_and_the_same_on_every_machine() -> None:
    text = json.dumps(schema())
    assert "max_connections" in text
    assert str(parsed(GOOD).listen.max_connections) not in json.dumps(schema()["$defs"]["Listen"])


EXAMPLES = ROOT / "deploy" / "examples"


@pytest.mark.parametrize("example", sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("*/forebay.yaml")]), ids=str)
def test_the_examples_are_valid_and_nothing_in_them_is_useless(example: Path) -> None:
    loaded = load_document(example, {"FOREBAY_SALT": SALT, "FOREBAY_REDIS": "redis://redis:6379/0"})
    assert loaded.config.endpoints and not loaded.warnings


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_the_file_holds_the_answer_is_a_config_or_errors_with_a_place(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(start, min(len(GOOD), start + 20)))
    noise = data.draw(
        st.text(st.sampled_from("{}[]:,-&*!|>'\"#%@`\n\t ~.0129eEaznoul<\u00e9\U0001f600\x00"), max_size=12)
    )
    text = GOOD[:start] + noise + GOOD[end:]
    try:
        parsed(text)
    except ConfigErrors as errors:
        assert errors.errors
        last = text.count("\n") + 1
        assert all(1 <= error.line <= last and error.column >= 1 for error in errors.errors)
