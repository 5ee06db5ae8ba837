"""What model servers say of themselves, in our words: the table against expositions of each engine."""

from dataclasses import fields
from pathlib import Path

import pytest

from tidegate.histogram import Histogram
from tidegate.metrics import FILL, Exposition, cumulative
from tidegate.queue_proxy.known_metrics import ENGINES, TABLE, WANTED, Figure
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters
from tidegate.queue_proxy.model_server_metrics import FULL, STALE_S, ModelServerMetrics, fill_of_requests, record_fill
from tidegate.queue_proxy.prometheus_text import Scan, scan
from tidegate.records.replica_sample import AppSample
from tidegate.runtime.metrics import RuntimeCounters

TEXTS = Path(__file__).parent / "expositions"


def scanned(text: bytes) -> Scan:
    parts = scan(text, WANTED)
    while True:
        try:
            next(parts)
        except StopIteration as done:
            found: Scan = done.value
            return found


def read(*texts: bytes, models: tuple[str, ...] = ()) -> ModelServerMetrics:
    """A meter that read one text a second."""
    meter = ModelServerMetrics(models)
    for second, text in enumerate(texts):
        meter.take(scanned(text), float(second))
    return meter


def figures_of(sample: AppSample) -> dict[str, float | None]:
    return {
        figure.value: getattr(sample, figure.value) for figure in Figure if getattr(sample, figure.value) is not None
    }


EXPECTED: dict[str, tuple[str, tuple[str, ...], dict[str, float]]] = {
    "triton": (
        "triton",
        ("resnet",),
        {
            "requests": 400.0,
            "inferences": 1600.0,
            "executions": 200.0,
            "request_s": 10.0,
            "queue_s": 2.0,
            "compute_s": 8.0,
        }
        | {"pending": 7.0, "gpu_utilization": 37.5, "gpu_memory": 37.5},
    ),
    "vllm": (
        "vllm",
        ("chat",),
        {"requests": 100.0, "inferences": 100.0, "request_s": 200.0, "queue_s": 20.0, "compute_s": 180.0}
        | {"pending": 2.0, "running": 8.0, "kv_cache": 40.0},
    ),
    "vllm-0.6": (
        "vllm",
        ("chat",),
        {"requests": 50.0, "inferences": 50.0, "request_s": 100.0, "queue_s": 5.0}
        | {"pending": 1.0, "running": 4.0, "kv_cache": 25.0},
    ),
    "tgi": (
        "tgi",
        ("chat",),
        {"requests": 30.0, "inferences": 30.0, "request_s": 45.0, "queue_s": 3.0, "compute_s": 42.0}
        | {"pending": 4.0, "running": 6.0},
    ),
    "torchserve": (
        "torchserve",
        ("cifar",),
        {"requests": 100.0, "inferences": 100.0, "request_s": 5.0000005, "queue_s": 1.00000025, "compute_s": 4.00000025}
        | {"gpu_utilization": 40.0, "gpu_memory": 12.5},
    ),
    "mlserver": ("mlserver", ("iris",), {"requests": 50.0, "inferences": 50.0, "request_s": 0.75}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_engine_is_recognised_and_reported_in_our_units(name: str) -> None:
    engine, models, figures = EXPECTED[name]
    sample = read((TEXTS / f"{name}.txt").read_bytes(), models=models).sample(0.5)
    assert (sample.engine, sample.up, sample.fault) == (engine, True, None)
    assert figures_of(sample) == pytest.approx(figures)


def test_every_recorded_text_is_expected() -> None:
    assert {path.stem for path in TEXTS.iterdir()} == EXPECTED.keys()


def test_our_own_runtime_is_distinguished_from_triton() -> None:
    counters = RuntimeCounters(
        success=8, inferences=16, executions=4, request_s=2.0, queue_s=0.5, infer_s=1.0, input_s=0.25
    )
    sample = read(counters.render("m", 3, 8), models=("m",)).sample(0.0)
    assert (sample.engine, sample.missing, sample.max_batch) == ("tidegate", (), 8)
    assert figures_of(sample) == pytest.approx(
        {"requests": 8, "inferences": 16, "executions": 4, "request_s": 2.0, "queue_s": 0.5, "compute_s": 1.25}
        | {"pending": 3, "max_batch": 8}
    )


def test_the_table_has_one_row_per_figure_and_engine_and_fits_the_record() -> None:
    assert len({(row.engine, row.figure) for row in TABLE}) == len(TABLE)
    assert {figure.value for figure in Figure} <= {field.name for field in fields(AppSample)}
    assert len(ENGINES) == 6


def test_counters_are_found_with_and_without_total() -> None:
    text = (TEXTS / "triton.txt").read_bytes()
    for name in (b"request_success", b"exec_count", b"queue_duration_us"):
        text = text.replace(b"nv_inference_" + name + b"{", b"nv_inference_" + name + b"_total{")
    assert figures_of(read(text, models=("resnet",)).sample(0.0)) == EXPECTED["triton"][2]


def test_without_the_functions_own_model_all_models_count() -> None:
    sample = read((TEXTS / "triton.txt").read_bytes(), models=("another",)).sample(0.0)
    assert (sample.requests, sample.pending) == (490.0, 8.0)


def test_missing_figures_are_named_with_their_series() -> None:
    sample = read((TEXTS / "vllm-0.6.txt").read_bytes()).sample(0.0)
    assert sample.missing == ("compute_s (vllm:request_inference_time_seconds_sum)",)
    assert "vllm:time_in_queue_requests_sum" in sample.found


def test_the_self_check_speaks_once_and_again_when_something_changes() -> None:
    meter = read(b"go_threads 4\n")
    assert meter.news() == "application metrics: none of the known series in 1 lines (0 malformed)"
    assert meter.news() is None
    meter.take(scanned(b"tgi_queue_size 1\n"), 1.0)
    news = meter.news()
    assert news is not None
    assert "engine tgi, 1 series (tgi_queue_size); missing: requests (tgi_request_success), " in news
    assert meter.news() is None
    meter.failed("no answer")
    assert meter.news() is None


def test_rubbish_is_reported_once_however_much_it_is() -> None:
    """A text whose lines differ in number at every look fills no log."""
    meter = read(b"one\n")
    assert meter.news() is not None
    for count in range(2, 30):
        meter.take(scanned(b"rubbish {\n" * count), float(count))
        assert meter.news() is None
    meter.failed("no answer within 0.8 s")
    assert meter.news() == "application metrics: no answer within 0.8 s"


def test_levels_go_stale_and_counters_stand_still() -> None:
    meter = read((TEXTS / "tgi.txt").read_bytes())
    assert meter.sample(STALE_S).up
    meter.failed("no answer within 0.8 s")
    late = meter.sample(STALE_S + 0.01)
    assert (late.up, late.fault, late.age_s) == (False, "no answer within 0.8 s", STALE_S + 0.01)
    assert (late.pending, late.running, late.requests) == (None, None, 30.0)
    meter.take(scanned((TEXTS / "tgi.txt").read_bytes()), 10.0)
    assert (meter.sample(10.0).up, meter.sample(10.0).requests, meter.sample(10.0).pending) == (True, 30.0, 4.0)


def test_a_server_that_counts_from_zero_again_is_followed() -> None:
    def text(requests: int) -> bytes:
        return b'tgi_request_success{kind="full"} %d\n' % requests

    meter = read(*(text(count) for count in (10, 14, 3, 5)))
    assert meter.sample(3.0).requests == 19.0


def test_a_name_or_a_model_that_comes_to_count_later_sets_nothing_back() -> None:
    def text(old: int, new: int | None) -> bytes:
        lines = b"vllm:time_in_queue_requests_sum %d\n" % old
        return lines + (b"" if new is None else b"vllm:request_queue_time_seconds_sum %d\n" % new)

    assert read(text(40, None), text(44, 1), text(46, 3)).sample(2.0).queue_s == 42.0
    other, ours = b'nv_inference_count{model="other"} 90\n', b'nv_inference_count{model="m"} %d\n'
    assert read(other, other + ours % 2, other + ours % 7, models=("m",)).sample(2.0).inferences == 95.0


def test_a_counter_that_was_not_reported_for_a_while_goes_on_from_where_it_was() -> None:
    tgi, vllm = b"tgi_request_success 100\ntgi_request_duration_sum 40\n", b"vllm:e2e_request_latency_seconds_sum %d\n"
    torch = b"# TYPE ts_inference_latency_microseconds countts_inference_latency 5\nts_queue_latency_microseconds 7\n"
    texts = (tgi, torch, vllm % 3, vllm % 5, torch, vllm % 6)
    seen = [read(*texts[:count]).sample(0.0).request_s for count in range(1, len(texts) + 1)]
    assert seen == [40.0, None, 40.0, 42.0, None, 43.0]


def test_a_series_that_comes_back_is_counted_once() -> None:
    one, both = b'ts_inference_requests_total{model_name="a"} 5\n', b'ts_inference_requests_total{model_name="b"} 7\n'
    assert read(one + both, one, one + both).sample(2.0).requests == 12.0


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "-Inf", "1e16", "1e999"])
def test_a_figure_that_cannot_be_is_not_known(value: str) -> None:
    sample = read(f"tgi_queue_size {value}\ntgi_request_success {value}\ntgi_batch_current_size 2\n".encode()).sample(
        0.0
    )
    assert (sample.pending, sample.requests, sample.running) == (None, None, 2.0)


@pytest.mark.parametrize("text", [b"", b"\x00\xff" * 5000, b"<!doctype html>\n<p>hello\n", b"{}" * 100])
def test_garbage_is_a_fault_and_nothing_else(text: bytes) -> None:
    meter = read((TEXTS / "tgi.txt").read_bytes(), text)
    sample = meter.sample(1.0)
    assert (sample.up, sample.requests, meter.failures) == (True, 30.0, 1)
    assert sample.fault is not None
    assert sample.fault.startswith("none of the known series")
    assert not meter.sample(STALE_S + 0.01).up


def triton(inferences: int, executions: int) -> bytes:
    return b"nv_inference_count %d\nnv_inference_exec_count %d\n" % (inferences, executions)


def test_batches_of_the_server_are_the_mean_between_two_readings() -> None:
    meter = read(triton(100, 100), triton(100, 100))
    meter.max_batch = 8
    meter.take(scanned(triton(180, 110)), 2.0)
    meter.take(scanned(triton(188, 114)), 3.0)
    text = exposed(meter)
    assert 'tidegate_app_batch_inferences_bucket{function="f",revision="r",group="g",replica="x",le="2"} 4\n' in text
    assert 'tidegate_app_batch_inferences_sum{function="f",revision="r",group="g",replica="x"} 88\n' in text
    assert 'tidegate_app_batch_inferences_count{function="f",revision="r",group="g",replica="x"} 14\n' in text
    fill = 'tidegate_queue_proxy_batch_fill_ratio_bucket{function="f",revision="r",group="g",replica="x",le='
    assert f'{fill}"0.25"}} 4\n' in text
    assert f'{fill}"0.875"}} 4\n' in text
    assert f'{fill}"1"}} 14\n' in text


def test_requests_fill_the_batch_where_the_server_tells_none_of_its_own() -> None:
    meter = read(b"tgi_request_success 3\n")
    meter.max_batch = 32
    text = exposed(meter, 8, 32)
    fill = 'tidegate_queue_proxy_batch_fill_ratio_bucket{function="f",revision="r",group="g",replica="x",le='
    assert f'{fill}"0.125"}} 0\n' in text
    assert f'{fill}"0.25"}} 1\n' in text
    assert f'{fill}"1"}} 2\n' in text


def exposed(meter: ModelServerMetrics, *batches: int) -> str:
    measure = ReplicaCounters(Identity(function="f", revision="r", group="g", replica="x", incarnation="1"), 0.0)
    for batch in batches:
        measure.batch.record_whole(batch)
    into = Exposition()
    meter.expose(into, measure, 3.0)
    return into.render().decode()


def test_what_is_exposed_has_our_names_and_ratios() -> None:
    text = exposed(read((TEXTS / "triton.txt").read_bytes(), models=("resnet",)))
    labels = 'function="f",revision="r",group="g",replica="x"'
    for line in (
        f"tidegate_app_metrics_up{{{labels}}} 1",
        f'tidegate_app_metrics_series{{{labels},engine="triton"}} 12',
        f'tidegate_app_metrics_missing_figures{{{labels},engine="triton"}} 0',
        f"tidegate_app_metrics_age_seconds{{{labels}}} 3",
        f"tidegate_app_inferences_total{{{labels}}} 1600",
        f"tidegate_app_compute_seconds_total{{{labels}}} 8",
        f"tidegate_app_gpu_memory_ratio{{{labels}}} 0.375",
    ):
        assert f"{line}\n" in text


def test_fill_is_exact_in_eighths() -> None:
    fill = Histogram()
    for batch in range(1, 9):
        record_fill(fill, batch, 8, 1)
    assert cumulative(fill, FILL.edges) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert fill.sum_micros == FULL * 36 // 8
    assert fill_of_requests(Histogram(), 8).total == 0


def test_only_triton_is_asked_for_its_configuration_and_once() -> None:
    meter = read((TEXTS / "triton.txt").read_bytes(), models=("resnet",))
    assert (meter.model, meter.needs_config, meter.needs_config) == ("resnet", True, False)
    assert not read((TEXTS / "tgi.txt").read_bytes()).needs_config
