"""Counters under Triton's names."""

from tidegate.runtime.metrics import FailureReason, RuntimeCounters


def test_every_name_is_there_from_the_start() -> None:
    text = RuntimeCounters().render("m", 2).decode()
    for name in (
        "nv_inference_request_success",
        "nv_inference_count",
        "nv_inference_exec_count",
        "nv_inference_request_duration_us",
        "nv_inference_queue_duration_us",
        "nv_inference_compute_input_duration_us",
        "nv_inference_compute_infer_duration_us",
        "nv_inference_compute_output_duration_us",
    ):
        assert f'{name}{{model="m",version="1"}} 0\n' in text
        assert f"# TYPE {name} counter\n" in text
    assert 'nv_inference_pending_request_count{model="m",version="1"} 2\n' in text
    assert "# TYPE nv_inference_pending_request_count gauge\n" in text


def test_failures_by_reason_and_durations_in_whole_microseconds() -> None:
    counters = RuntimeCounters(queue_s=0.0000015)
    for count, reason in enumerate(FailureReason, start=1):
        for _ in range(count):
            counters.fail(reason)
    text = counters.render("m", 0).decode()
    for count, name in enumerate(("REJECTED", "CANCELED", "BACKEND", "OTHER"), start=1):
        assert f'nv_inference_request_failure{{model="m",version="1",reason="{name}"}} {count}\n' in text
    assert 'nv_inference_queue_duration_us{model="m",version="1"} 2\n' in text
