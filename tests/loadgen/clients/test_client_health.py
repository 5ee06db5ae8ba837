"""A client that falls behind says so."""

import pytest

from tidegate.loadgen.clients.client_health import report_of
from tidegate.loadgen.clients.outcomes import RequestOutcome


def outcomes(*lags_s: float) -> list[RequestOutcome]:
    return [RequestOutcome(0.0, 0.1, 1, 200, lag_s=lag_s) for lag_s in lags_s]


@pytest.mark.parametrize(
    ("late", "cpu_s", "is_bottleneck"),
    [(1, 6.0, False), (3, 6.0, True), (3, 1.0, False), (0, 9.0, True), (0, 7.9, False)],
    ids=["one late, busy", "three late, busy", "three late, idle", "nine tenths of a core", "eight tenths"],
)
def test_what_makes_the_client_the_bottleneck(late: int, cpu_s: float, is_bottleneck: bool) -> None:
    report = report_of(outcomes(*[0.03] * late, *[0.001] * (100 - late)), cpu_s, 10.0)
    assert report.is_bottleneck is is_bottleneck
    assert ("BOTTLENECK" in str(report)) is is_bottleneck


def test_nothing_sent_is_nothing_late() -> None:
    assert not report_of([], 0.0, 0.0).is_bottleneck
