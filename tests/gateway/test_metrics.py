"""Counters and histograms: what is counted, what may become a label, and what a scrape costs."""

import time
import timeit
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry import families
from gateway.telemetry.families import FAMILIES, MetricKind, markdown
from gateway.telemetry.histogram import LAG_BOUNDS, REQUEST_BOUNDS, Histogram
from gateway.telemetry.live import watch_endpoints, watch_flows, watch_probes
from gateway.telemetry.metrics import ATTEMPT_RESULTS, MAX_CLASSES, MAX_NAMES, MAX_TENANTS, OUTCOMES, Metrics
from gateway.telemetry.process import open_fds, resident_bytes
from gateway.telemetry.record import RequestRecord
from gateway.telemetry.render import CHUNK_LINES
from policies.decisions import Reason
from policies.events import Cause
from policies.state.views import EndpointView, FlowView
from policies.types import Band

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def a_record(**fields: object) -> RequestRecord:
    """A completed stream: 10 ms to read, 1 s in the queue, 0.49 s to the first token, 99 more at 20 ms."""
    values: dict[str, object] = {
        "request_id": "r1", "read_ms": 10.0, "queue_ms": 1000.0, "ttft_ms": 1500.0, "duration_ms": 3480.0,
        "tenant": "default", "model": "llama", "band": "standard", "route": "chat", "status": 200,
        "outcome": "completed", "stream": True, "prompt_tokens": 500, "cached_tokens": 64, "output_tokens": 100,
        "bytes_in": 2048, "bytes_out": 9000,
    }  # fmt: skip
    return RequestRecord(**{**values, **fields})  # type: ignore[arg-type]


def some_metrics() -> Metrics:
    promised = Band(name="standard", rank=2, queue_timeout_s=60.0, max_queued=9, slo_ttft_s=2.0, slo_itl_s=0.1)
    return Metrics(models=["llama", "qwen"], version="1.2.3", bands={"standard": promised})


def counted(metrics: Metrics, *records: RequestRecord) -> Metrics:
    for record in records:
        metrics.ended(record, metrics.received(record))
    return metrics


def series(metrics: Metrics) -> Series:
    """Every sample of a scrape by name and labels; fails on text the reference parser does not take, or a doubled series."""
    found: Series = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """The sum over all series of `name` that have these labels."""
    wanted = labels.items()
    return sum(v for (n, pairs), v in series(metrics).items() if n == name and wanted <= dict(pairs).items())


def test_every_family_is_exposed_with_its_type_and_labels() -> None:
    metrics = counted(some_metrics(), a_record())
    metrics.http_refused(Reason.HOST)
    metrics.attempt_started()
    metrics.noted("short", "borrowed")
    metrics.upstream_failed("s0", Cause.RESET)
    for family in FAMILIES:
        if family.watched:
            metrics.watch(family, lambda family=family: [(tuple("x" for _ in family.labels), 1)])
    parsed = {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}
    for family in FAMILIES:
        seen = parsed[family.name.removesuffix("_total") if family.kind is MetricKind.COUNTER else family.name]
        assert seen.type == family.kind
        assert seen.documentation == family.text
        assert seen.samples, family.name
        assert all(set(family.labels) | {"le"} >= set(sample.labels) for sample in seen.samples)
        assert all(set(family.labels) <= set(sample.labels) for sample in seen.samples)
    assert len(parsed) == len(FAMILIES)


def test_the_page_of_metrics_is_the_one_generated_from_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text() == markdown(), "run: python -m gateway.telemetry.families > docs/metrics.md"


@pytest.mark.parametrize(
    ("outcome", "reason", "stage", "label"),
    [
        ("completed", "", "stream", ""),
        ("rejected", "invalid_parameter", "body", "invalid_parameter"),
        ("expired", "queue_timeout", "queued", "queue_timeout"),
        ("failed", "backend_stall", "stream", "backend_stall"),
        ("cancelled", "client_closed", "queued", "queued"),
        ("cancelled", "client_closed", "sent", "sent"),
    ],
)
def test_an_end_is_counted_once_under_its_outcome_and_reason(outcome: str, reason: str, stage: str, label: str) -> None:
    metrics = counted(some_metrics(), a_record(outcome=outcome, reason=reason, stage=stage))
    ended = {k: v for k, v in series(metrics).items() if k[0] == "forebay_requests_ended_total"}
    labels = {"class": "standard", "model": "llama", "outcome": outcome, "reason": label, "tenant": "default"}
    assert ended == {("forebay_requests_ended_total", tuple(sorted(labels.items()))): 1}
    assert value(metrics, "forebay_requests_received_total", tenant="default", model="llama") == 1


def test_what_is_outside_the_invariant_is_neither_received_nor_ended() -> None:
    metrics = some_metrics()
    metrics.ended(a_record(outcome="", route="models", bytes_out=7), None)
    metrics.http_refused(Reason.NOT_FOUND)
    assert value(metrics, "forebay_requests_ended_total") == 0
    assert value(metrics, "forebay_http_responses_total", route="models", status="200") == 1
    assert value(metrics, "forebay_http_refused_total", reason="not_found") == 1
    assert value(metrics, "forebay_body_bytes_total", direction="out") == 7


def test_totals_are_the_sums_of_the_series() -> None:
    metrics = some_metrics()
    for number, outcome in enumerate(OUTCOMES, 1):
        counted(metrics, *(a_record(outcome=outcome, model=model) for model in ("llama", "x") for _ in range(number)))
    totals = metrics.totals(queued=3, inflight=4)
    assert [getattr(totals, outcome) for outcome in OUTCOMES] == [2, 4, 6, 8, 10]
    assert (totals.received, totals.queued, totals.inflight) == (30, 3, 4)
    assert value(metrics, "forebay_requests_ended_total") == 30


def test_tokens_are_counted_by_kind() -> None:
    metrics = counted(some_metrics(), a_record(), a_record(prompt_tokens=1, cached_tokens=0, output_tokens=1))
    kinds = {k: value(metrics, "forebay_tokens_total", kind=k) for k in ("prompt", "cached", "output")}
    assert kinds == {"prompt": 501, "cached": 64, "output": 101}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("forebay_time_to_first_token_seconds", 1.5),  # from the first byte of the request, queue included
        ("forebay_queue_time_seconds", 1.0),
        ("forebay_time_per_output_token_seconds", 0.02),  # (end - first token) / 99
        ("forebay_request_duration_seconds", 3.48),
    ],
)
def test_times_are_measured_between_the_right_moments(name: str, seconds: float) -> None:
    metrics = counted(some_metrics(), a_record())
    assert value(metrics, f"{name}_sum", **{"class": "standard"}) == pytest.approx(seconds)
    assert value(metrics, f"{name}_count", model="llama") == 1


@pytest.mark.parametrize(
    ("band", "fields", "missed"),
    [
        ("standard", {}, {"none": 1}),  # 1.5 s to the first token, then 20 ms each
        ("standard", {"ttft_ms": 2001.0, "duration_ms": 3981.0}, {"ttft": 1}),
        ("standard", {"ttft_ms": 2001.0, "duration_ms": 3981.0, "prompt_tokens": 2148}, {"none": 1}),  # 25 ms more
        ("standard", {"duration_ms": 11_500.0}, {"itl": 1}),
        ("standard", {"ttft_ms": 2001.0, "duration_ms": 99_000.0}, {"both": 1}),
        ("standard", {"output_tokens": 1, "duration_ms": 11_500.0}, {"none": 1}),
        ("standard", {"ttft_ms": None, "stream": False}, {}),
        ("standard", {"outcome": "failed", "reason": "backend_stall"}, {}),
        ("batch", {"ttft_ms": 200_000.0, "duration_ms": 300_000.0}, {}),  # no promise
        ("patient", {"ttft_ms": 200_000.0, "duration_ms": 300_000.0}, {"itl": 1}),
        ("unheard-of", {}, {}),
    ],
)
def test_streams_are_counted_by_what_of_their_slo_they_missed(
    band: str, fields: dict[str, object], missed: dict[str, int]
) -> None:
    plain: dict[str, Any] = {"rank": 0, "queue_timeout_s": 60.0, "max_queued": 9}
    bands = [
        Band(name="standard", slo_ttft_s=2.0, slo_itl_s=0.1, **plain),
        Band(name="batch", **plain),
        Band(name="patient", slo_itl_s=0.1, **plain),
    ]
    metrics = Metrics(models=["llama"], version="1", bands={each.name: each for each in bands})
    counted(metrics, a_record(band=band, **fields))
    told = {k: value(metrics, "forebay_slo_requests_total", missed=k) for k in ("none", "ttft", "itl", "both")}
    assert {k: v for k, v in told.items() if v} == missed


def test_a_changed_slo_counts_from_then_on() -> None:
    metrics = some_metrics()
    for itl_s in (0.01, 0.03):
        strict = Band(name="standard", rank=0, queue_timeout_s=60.0, max_queued=9, slo_itl_s=itl_s)
        metrics.change(["llama"], {"standard": strict})
        counted(metrics, a_record())
    assert value(metrics, "forebay_slo_requests_total", missed="itl") == 1
    assert value(metrics, "forebay_slo_requests_total", missed="none", tenant="default", model="llama") == 1


def test_an_answer_of_one_token_gives_no_time_per_token() -> None:
    metrics = counted(some_metrics(), a_record(output_tokens=1))
    assert value(metrics, "forebay_time_per_output_token_seconds_count") == 0
    assert value(metrics, "forebay_time_to_first_token_seconds_count") == 1


def test_an_expired_request_waited_until_it_was_dropped() -> None:
    record = a_record(outcome="expired", queue_ms=30_000.0, ttft_ms=None, duration_ms=30_010.0)
    metrics = counted(some_metrics(), record)
    assert value(metrics, "forebay_queue_time_seconds_sum") == pytest.approx(30.0)
    assert value(metrics, "forebay_request_duration_seconds_count") == 0


def test_a_refused_body_leaves_no_times() -> None:
    record = a_record(outcome="rejected", read_ms=None, queue_ms=None, ttft_ms=None)
    metrics = counted(some_metrics(), record)
    assert sum(v for (name, _), v in series(metrics).items() if name.endswith("seconds_count")) == 0


def test_attempts_start_at_zero_and_take_only_the_known_results() -> None:
    metrics = some_metrics()
    assert {r: value(metrics, "forebay_attempts_total", result=r) for r in ATTEMPT_RESULTS} == dict.fromkeys(
        ATTEMPT_RESULTS, 0
    )
    metrics.attempt_started()
    metrics.attempt("bounced")
    assert value(metrics, "forebay_attempts_total", result="bounced") == 1
    assert value(metrics, "forebay_attempts_started_total") == 1
    metrics.attempt_started()
    assert metrics.attempts_open() == 1
    with pytest.raises(KeyError):
        metrics.attempt("gone")


def test_a_hundred_thousand_client_names_do_not_grow_the_series() -> None:
    metrics = counted(some_metrics(), a_record())
    before, memory = len(series(metrics)), resident_bytes()
    for number in range(100_000):
        name = f"name-{number}"
        counted(metrics, a_record(model=name, client_request_id=name, client=name, path=name, request_id=name))
    unknown_lane = len(series(some_metrics())) + 0
    assert len(series(metrics)) <= 2 * before - unknown_lane
    assert value(metrics, "forebay_requests_received_total", model="unknown") == 100_000
    assert resident_bytes() - memory < 20_000_000


@pytest.mark.parametrize(
    ("family", "label", "most"),
    [
        ("forebay_requests_received_total", "tenant", MAX_TENANTS + 1),
        ("forebay_requests_received_total", "class", MAX_CLASSES + 1),
        ("forebay_requests_ended_total", "reason", 1),
        ("forebay_http_responses_total", "route", MAX_NAMES + 1),
        ("forebay_http_refused_total", "reason", 1),
        ("forebay_upstream_failures_total", "endpoint", MAX_NAMES + 1),
        ("forebay_upstream_failures_total", "cause", 1),
        ("forebay_dispatches_noted_total", "pool", MAX_NAMES + 1),
    ],
)
def test_every_label_has_a_cap_and_the_rest_goes_to_other(family: str, label: str, most: int) -> None:
    metrics = some_metrics()
    for number in range(400):
        name = f"name-{number}"
        fields = {
            "tenant": {"tenant": name},
            "class": {"band": name},
            "reason": {"reason": name},
            "route": {"route": name},
        }
        counted(metrics, a_record(**fields.get(label, {})))
        metrics.http_refused(name)
        metrics.noted(name, "borrowed")
        endpoint, cause = (name, "reset") if label == "endpoint" else ("s0", name)
        metrics.upstream_failed(endpoint, cause)
    values = {dict(pairs)[label] for name, pairs in series(metrics) if name == family}
    assert len(values) == most
    assert "other" in values
    assert value(metrics, family) == 400


def test_a_configured_name_with_awkward_characters_is_escaped() -> None:
    awkward = 'a"b\\c\nd{}=,é '
    metrics = counted(Metrics(models=[awkward], version="1"), a_record(model=awkward))
    assert value(metrics, "forebay_requests_received_total", model=awkward) == 1


def test_a_lone_surrogate_in_a_name_does_not_break_the_scrape() -> None:
    metrics = counted(Metrics(models=["m\ud800"], version="1"), a_record(model="m\ud800"))
    assert value(metrics, "forebay_requests_received_total", model="m?") == 1


@pytest.mark.parametrize("bounds", [REQUEST_BOUNDS, LAG_BOUNDS])
def test_bounds_rise_by_at_most_half_again(bounds: tuple[float, ...]) -> None:
    assert all(1 < high / low <= 1.5 + 1e-9 for low, high in pairwise(bounds))


def test_common_objectives_are_bounds() -> None:
    assert {0.05, 0.1, 0.2, 0.4, 1.0, 2.0, 5.0, 30.0, 300.0} <= set(REQUEST_BOUNDS)


def test_a_histogram_counts_a_value_at_its_bound_and_one_beyond_all() -> None:
    histogram = Histogram((0.1, 0.2))
    for seconds in (0.1, 0.15, 0.2, 7.0, -0.001):
        histogram.observe(seconds)
    counts, total = histogram.state()
    assert counts == [2, 2, 1]
    assert total == pytest.approx(7.449)


def test_buckets_are_cumulative_and_end_with_the_count() -> None:
    metrics = counted(
        some_metrics(), a_record(), a_record(duration_ms=500.0, ttft_ms=200.0), a_record(duration_ms=9_899_000.0)
    )
    name = "forebay_request_duration_seconds"
    buckets = [
        (float(dict(pairs)["le"]), count) for (n, pairs), count in series(metrics).items() if n == f"{name}_bucket"
    ]
    counts = [count for _, count in sorted(buckets)]
    assert counts == sorted(counts)
    assert counts[-1] == value(metrics, f"{name}_count") == 3
    assert dict(buckets)[0.5] == 1
    assert dict(buckets)[4.0] == 2


def test_a_scrape_shows_one_instant_however_long_it_takes() -> None:
    metrics = counted(some_metrics(), a_record())
    pieces = metrics.chunks()
    first = next(pieces)
    counted(metrics, a_record(model="qwen"), a_record(outcome="failed", reason="internal"))
    text = (first + b"".join(pieces)).decode()
    assert 'model="qwen"' not in text
    assert 'outcome="failed"' not in text
    assert len(series(metrics)) > text.count("\n") / 2


def test_pieces_are_small() -> None:
    metrics = Metrics(models=[f"m{n}" for n in range(200)], version="1")
    counted(metrics, *(a_record(model=f"m{n}") for n in range(200)))
    pieces = list(metrics.chunks())
    assert len(pieces) > 100
    assert (
        max(piece.count(b"\n") for piece in pieces) <= 1.5 * CHUNK_LINES
    )  # a histogram ends with three lines in one step


@pytest.mark.serial
def test_no_step_of_a_scrape_of_ten_thousand_series_holds_the_loop_for_10_ms() -> None:
    metrics = Metrics(models=[f"m{n}" for n in range(40)], version="1")
    counted(metrics, *(a_record(model=f"m{n}") for n in range(40)))  # 7,500 lines of histograms
    names = [(f"pool-{number}", "default", "standard") for number in range(10_000)]
    metrics.watch(families.QUEUE_REQUESTS, lambda: [(name, 1) for name in names])
    for _ in range(3):
        steps_s, began_s = [], time.thread_time()
        for _ in metrics.chunks():
            steps_s.append(time.thread_time() - began_s)
            began_s = time.thread_time()
        assert len(steps_s) > 60
        assert max(steps_s) < 0.010


def test_a_watched_family_follows_its_table_and_forgets_what_left_it() -> None:
    metrics = some_metrics()
    table = {"s0": 3, "s1": 4}
    metrics.watch(families.ENDPOINT_SEQUENCES, lambda: [((name,), count) for name, count in table.items()])
    assert value(metrics, "forebay_endpoint_sequences", endpoint="s1") == 4
    del table["s1"]
    rest = [pairs for name, pairs in series(metrics) if name == "forebay_endpoint_sequences"]
    assert rest == [(("endpoint", "s0"),)]


def test_a_counted_family_cannot_be_watched() -> None:
    with pytest.raises(ValueError, match="forebay_tokens_total"):
        some_metrics().watch(families.TOKENS, list)


def test_what_nothing_feeds_is_told() -> None:
    metrics = some_metrics()
    assert "forebay_ready" in metrics.unwatched()
    metrics.watch_value(families.READY, lambda: True)
    assert "forebay_ready" not in metrics.unwatched()
    assert "process_open_fds" not in metrics.unwatched()
    assert value(metrics, "forebay_ready") == 1


def test_views_of_the_core_and_the_probes_become_gauges() -> None:
    from gateway.endpoints.directory import Standing

    metrics = some_metrics()
    flow = FlowView(pool="short", tenant="default", band="batch", queued=3, queued_bytes=900, oldest_s=95.0)
    numbers = {"sequences": 2, "prefill_tokens": 70, "max_seqs": 64, "max_prefill_tokens": 8192, "kv_tokens": 500}
    endpoint = EndpointView(name="s0", up=True, prefill_tokens_per_s=8000.0, **numbers)
    watch_flows(metrics, lambda: [flow], now=lambda: 100.0)
    watch_endpoints(metrics, lambda: [endpoint], lambda: {"short": 0.5})
    watch_probes(metrics, lambda: [("s0", Standing(up=True, probes_good=5)), ("s1", Standing(probes_failed=2))])
    labels = {"pool": "short", "tenant": "default", "class": "batch"}
    assert value(metrics, "forebay_queue_requests", **labels) == 3
    assert value(metrics, "forebay_queue_bytes", **labels) == 900
    assert value(metrics, "forebay_queue_oldest_seconds", **labels) == 5
    assert value(metrics, "forebay_pool_saturation", pool="short") == 0.5
    assert value(metrics, "forebay_endpoint_sequences", endpoint="s0") == 2
    assert value(metrics, "forebay_endpoint_prefill_tokens", endpoint="s0") == 70
    assert value(metrics, "forebay_endpoint_max_sequences", endpoint="s0") == 64
    assert value(metrics, "forebay_endpoint_max_prefill_tokens", endpoint="s0") == 8192
    assert value(metrics, "forebay_endpoint_kv_tokens", endpoint="s0") == 500
    assert value(metrics, "forebay_endpoint_up", endpoint="s0") == 1
    assert value(metrics, "forebay_endpoint_up", endpoint="s1") == 0
    assert value(metrics, "forebay_probes_total", endpoint="s1", result="failed") == 2
    assert value(metrics, "forebay_probes_total", endpoint="s0", result="good") == 5


def test_queues_of_tenants_that_share_a_label_are_added_up() -> None:
    metrics = Metrics(models=["llama"], version="1", tenants=1)
    numbers = {"pool": "short", "band": "batch", "queued": 3, "queued_bytes": 900}
    flows = [FlowView(tenant=f"t{number}", oldest_s=95.0 - number, **numbers) for number in range(4)]
    watch_flows(metrics, lambda: flows, now=lambda: 100.0)
    for tenant, queued, oldest_s in (("t0", 3, 5), ("other", 9, 8)):
        assert value(metrics, "forebay_queue_requests", tenant=tenant) == queued
        assert value(metrics, "forebay_queue_oldest_seconds", tenant=tenant) == oldest_s


def test_process_figures_are_those_of_the_kernel() -> None:
    metrics = some_metrics()
    before = open_fds()
    with open("/dev/null", "rb"):
        assert open_fds() == before + 1
    assert open_fds() == before
    assert value(metrics, "process_resident_memory_bytes") > 10_000_000
    assert value(metrics, "process_max_fds") > 0
    assert value(metrics, "process_start_time_seconds") > 1e9
    assert value(metrics, "process_cpu_seconds_total") > 0
    assert value(metrics, "forebay_build_info", version="1.2.3") == 1


def test_counting_costs_a_few_microseconds_a_request() -> None:
    metrics, record = some_metrics(), a_record()

    def one_request() -> None:
        lane = metrics.received(record)
        metrics.attempt_started()
        metrics.attempt("finished")
        metrics.ended(record, lane)

    best_s = min(timeit.repeat(one_request, timer=time.thread_time, number=1000, repeat=20)) / 1000
    assert best_s < 20e-6  # 3 µs on an idle core
