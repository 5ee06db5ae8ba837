"""OpenTelemetry's ``http.server.request.duration``: the convention's name, labels and bounds."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.counting.test_counters import none_waits
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.flow.outliers import Outliers
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.counting.http_durations import HttpDurations
from tidegate.metrics import HTTP_SERVER_DURATION, Exposition


def read(text: bytes) -> dict[tuple[str, str, str], float]:
    """Returns counts by method, status and error."""
    return {
        (
            sample.labels["http_request_method"],
            sample.labels["http_response_status_code"],
            sample.labels["error_type"],
        ): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == "http_server_request_duration_seconds_count"
    }


def test_the_bounds_are_the_conventions() -> None:
    assert HTTP_SERVER_DURATION.buckets is not None
    assert [float(each) for each in HTTP_SERVER_DURATION.buckets.labels] == [
        *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    ]


@pytest.mark.parametrize(
    ("method", "status", "error", "shown"),
    [
        (b"POST", 200, "", ("POST", "200", "")),
        (b"POST", 429, "", ("POST", "429", "")),
        (b"GET", 503, "refused", ("GET", "503", "503")),
        (b"BREW", 200, "", ("_OTHER", "200", "")),
        (b"POST", 200, "cancelled", ("POST", "200", "cancelled")),
        (b"POST", 0, "cancelled", ("POST", "", "cancelled")),
    ],
)
def test_method_status_and_error_are_labels(
    method: bytes, status: int, error: str, shown: tuple[str, str, str]
) -> None:
    durations, into = HttpDurations(), Exposition()
    durations.record(method, status, error, 0.01)
    durations.record(method, status, error, 0.02)
    durations.expose(into, ("f", "f-00001"), "http")
    text = into.render()
    assert read(text) == {shown: 2}
    assert b'url_scheme="http"' in text and b'le="0.01"} 1\n' in text


@pytest.mark.parametrize("scheme", ["https", None])
def test_a_worker_counts_them_where_they_are_asked_for(scheme: str | None) -> None:
    report = Report("g0", "inc", now=0.0, scheme=scheme)
    held = report.revision("f", "f-00001")
    assert (held.http is None) == (scheme is None)
    if held.http is not None:
        held.http.record(b"GET", 200, "", 0.01)
    into = Exposition()
    for _ in report.expose(
        into, 1.0, table=(0, 0), connections=0, waiting=none_waits, outliers=Outliers(), log_lines_dropped=0
    ):
        pass
    assert read(into.render()) == ({} if scheme is None else {("GET", "200", ""): 1})


def test_requests_that_have_not_ended_are_counted_by_method() -> None:
    held = Report("g0", "inc", now=0.0, scheme="http").revision("f", "f-00001")
    assert held.http is not None
    for method in (b"POST", b"POST", b"GET", b"BREW"):
        held.arrived(1, method)
    held.http.record(b"POST", 200, "", 0.01)
    held.http.record(b"GET", 0, "cancelled", 0.01)
    into = Exposition()
    held.http.expose(into, ("f", "f-00001"), "http")
    active = {
        sample.labels["http_request_method"]: sample.value
        for family in text_string_to_metric_families(into.render().decode())
        for sample in family.samples
        if sample.name == "http_server_active_requests"
    }
    assert active == {"POST": 1, "GET": 0, "_OTHER": 1}
    assert held.http.active == 2


def test_what_is_active_is_what_has_arrived_and_not_ended_however_it_ends() -> None:
    opened = Door(table(1, ONE))
    held = opened.report.revision("f", "f-00001")
    assert held.http is not None
    seen = []
    waiting, leaving, refused = (opened.arrive("POST /v2/models/m/infer") for _ in range(3))
    seen.append(held.http.active)
    leaving.client_gone()
    seen.append(held.http.active)
    opened.ready(ONE, 1)
    waiting.gets_answer(opened.now, 200, "tidegate-credit: keep")
    seen.append(held.http.active)
    assert refused.is_ended
    assert seen == [2, 1, 0]
    assert held.open == 0
