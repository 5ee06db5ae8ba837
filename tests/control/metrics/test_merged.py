"""Many processes, one text: what adds up, what does not, and what stays when a process has ended."""

import json

import pytest

from tidegate.control.metrics.merged import TABLE, MergedMetrics

WORKER = """# HELP tidegate_gateway_requests_total Requests that arrived.
# TYPE tidegate_gateway_requests_total counter
tidegate_gateway_requests_total{function="echo",revision="echo-00001"} %d
# HELP tidegate_gateway_oldest_waiting_seconds Age of the oldest waiting request.
# TYPE tidegate_gateway_oldest_waiting_seconds gauge
tidegate_gateway_oldest_waiting_seconds{function="echo",revision="echo-00001"} %s
# HELP tidegate_gateway_latency_seconds Latency.
# TYPE tidegate_gateway_latency_seconds histogram
tidegate_gateway_latency_seconds_bucket{function="echo",le="0.1"} 1
tidegate_gateway_latency_seconds_bucket{function="echo",le="+Inf"} 2
tidegate_gateway_latency_seconds_sum{function="echo"} 0.5
tidegate_gateway_latency_seconds_count{function="echo"} 2
# HELP tidegate_gateway_connections Open.
# TYPE tidegate_gateway_connections gauge
tidegate_gateway_connections{worker="%s"} 3
# HELP tidegate_gateway_unmatched_requests_total Unmatched.
# TYPE tidegate_gateway_unmatched_requests_total counter
tidegate_gateway_unmatched_requests_total{worker="%s"} 5
"""
REQUESTS = 'tidegate_gateway_requests_total{function="echo",revision="echo-00001"}'


def worker(requests: int, oldest: str = "0", name: str = "g0") -> bytes:
    return (WORKER % (requests, oldest, name, name)).encode()


def ended(metrics: MergedMetrics) -> dict[str, dict[str, float]]:
    """As the file for the next control process has it."""
    return dict(json.loads(b"".join(metrics.ended())))


def merged(metrics: MergedMetrics, functions: tuple[str, ...] = ("echo",), **texts: bytes | None) -> dict[str, str]:
    """Returns the values by series."""
    text = b"".join(metrics.steps(texts, functions)).decode()
    assert text.count("# TYPE tidegate_gateway_requests_total counter") <= 1
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_equal_series_add_up_and_ages_do_not() -> None:
    metrics = MergedMetrics()
    found = merged(metrics, a=worker(3, "0.5", "g0"), b=worker(4, "0.2", "g1"))
    assert found[REQUESTS] == "7"
    assert found['tidegate_gateway_oldest_waiting_seconds{function="echo",revision="echo-00001"}'] == "0.5"
    assert found['tidegate_gateway_latency_seconds_bucket{function="echo",le="0.1"}'] == "2"
    assert found['tidegate_gateway_latency_seconds_sum{function="echo"}'] == "1"
    assert found['tidegate_gateway_connections{worker="g0"}'] == "3"
    assert found['tidegate_gateway_connections{worker="g1"}'] == "3"
    assert metrics.unreadable == 0


def test_more_series_than_a_table_has_add_up_in_any_order_and_go_with_their_functions() -> None:
    def text(first: int, last: int, step: int, worker: str) -> bytes:
        lines = [f'a_total{{function="f{number}"}} {number + 1}\n' for number in range(first, last, step)]
        return f"# HELP a_total A.\n# TYPE a_total counter\n{''.join(lines)}".encode() + (
            f'# HELP b Level.\n# TYPE b gauge\nb{{worker="{worker}"}} 1\n'.encode()
        )

    count, metrics = 2 * TABLE + 10, MergedMetrics()
    functions = tuple(f"f{number}" for number in range(count + 5))
    up, down = text(0, count, 1, "g0"), text(count + 4, 4, -1, "g1")
    found: dict[str, str] = {}
    for _ in range(2):  # a second scrape begins with empty tables
        found = merged(metrics, functions, a=up, b=down)
        assert len(found) == count + 5 + 2
        for number in range(count + 5):
            both = (number < count) + (number > 4)
            assert found[f'a_total{{function="f{number}"}}'] == str(both * (number + 1)), number
    assert list(found)[:3] == [f'a_total{{function="f{number}"}}' for number in range(3)], "in the order of the first"
    found = merged(metrics, ("f0", f"f{TABLE}"), b=text(TABLE, TABLE + 1, 1, "g1"))
    assert found == {
        'a_total{function="f0"}': "1",
        f'a_total{{function="f{TABLE}"}}': str(2 * (TABLE + 1)),
        'b{worker="g1"}': "1",
    }
    assert {series for family in ended(metrics).values() for series in family} == {
        'a_total{function="f0"}',
        f'a_total{{function="f{TABLE}"}}',
    }
    found = merged(metrics, (f"f{TABLE}",), b=text(TABLE, TABLE + 1, 1, "g1"))
    assert found[f'a_total{{function="f{TABLE}"}}'] == str(2 * (TABLE + 1))


@pytest.mark.parametrize(
    "text",
    [b"this is { no exposition\n", b"# TYPE a counter\na 1", b"a 1\n", b"# TYPE a counter\na x\n", b"# TYPE a\n"],
)
def test_a_text_that_cannot_be_read_hides_no_other(text: bytes) -> None:
    metrics = MergedMetrics()
    assert merged(metrics, a=worker(3), b=text)[REQUESTS] == "3"
    assert metrics.unreadable == 1
    assert merged(metrics, a=worker(3)) and metrics.unreadable == 0


def test_a_counter_keeps_what_an_ended_process_had_counted() -> None:
    metrics = MergedMetrics()
    assert merged(metrics, a=worker(3), b=worker(4, name="g1"))[REQUESTS] == "7"
    found = merged(metrics, a=worker(5))
    assert found[REQUESTS] == "9"
    assert found['tidegate_gateway_latency_seconds_count{function="echo"}'] == "4"
    assert 'tidegate_gateway_connections{worker="g1"}' not in found, "a level of one process ends with it"
    assert 'tidegate_gateway_unmatched_requests_total{worker="g1"}' not in found, "and so does its own counter"
    assert merged(metrics, a=worker(5), c=worker(1))[REQUESTS] == "10", "its successor begins at zero"
    assert merged(metrics, c=worker(2))[REQUESTS] == "11"


def test_a_process_that_does_not_answer_keeps_its_counters_and_loses_its_levels() -> None:
    metrics = MergedMetrics()
    merged(metrics, a=worker(3, "7.5"), b=worker(4))
    found = merged(metrics, a=None, b=worker(5))
    assert (found[REQUESTS], metrics.unreadable) == ("8", 1)
    assert found['tidegate_gateway_oldest_waiting_seconds{function="echo",revision="echo-00001"}'] == "0"
    assert merged(metrics, a=worker(6), b=worker(5))[REQUESTS] == "11"


def test_the_next_control_process_goes_on_with_what_ended_processes_had_counted() -> None:
    first = MergedMetrics()
    merged(first, a=worker(3), b=worker(4))
    merged(first, b=worker(4))
    assert ended(first)["tidegate_gateway_requests_total"] == {REQUESTS: 3.0}
    assert merged(MergedMetrics(ended(first)), b=worker(5))[REQUESTS] == "8"


def test_what_was_counted_for_a_deleted_function_is_dropped() -> None:
    metrics = MergedMetrics()
    merged(metrics, a=worker(3), b=worker(4))
    assert REQUESTS not in merged(metrics, functions=("other",), b=None) or ended(metrics) == {}
    assert ended(metrics) == {}


def test_nothing_is_an_empty_text() -> None:
    assert merged(MergedMetrics()) == {}
