"""Dropping at a multiple of the latency target (``drop-after``), in the simulator's real waiting room."""

import pytest

from tests.loadgen.simulator.worlds import deployed, fixed, function, kind, poisson, run
from tidegate.function import Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.scenario import Scenario

SLA_S = 0.5


def scenario(arrivals: list[Arrival], drop_after: float | None, service_s: float = 0.1) -> Scenario:
    of = function(sla=Sla(latency_s=SLA_S, drop_after=drop_after))
    return Scenario(
        kinds=(kind(count=1),),
        functions=(deployed(fixed(service_s), of=of),),
        arrivals=arrivals,
        keeps_scale=True,
    )


def test_a_request_ends_when_it_has_waited_for_the_multiple_and_the_next_one_is_served() -> None:
    """A request of 2 s holds the only slot until 12 s. The second one, of 10.5 s, waits until 11.5 s (twice the
    target); the third, of 11.8 s, is served."""
    _, sink = run(scenario([Arrival(10.0), Arrival(10.5), Arrival(11.8)], 2.0, service_s=2.0))
    ended = sorted(sink.ended)
    assert [each[5] for each in ended] == ["answered", "dropped", "answered"]
    assert [each[2] for each in ended] == pytest.approx([12.0, 11.5, 14.0], abs=0.01)


def test_under_overload_dropping_early_violates_less_than_dropping_late_or_never() -> None:
    """Themis, section 6.3: 13 requests/s on a server of 10/s. Without dropping nearly all are late after a while."""
    violations = {}
    for multiple in (1.0, 3.0, None):
        _, sink = run(scenario(list(poisson(13.0, 2000, start_s=10.0)), multiple))
        good = sum(each[5] == "answered" and each[2] - each[0][2] <= SLA_S for each in sink.ended)
        assert len(sink.ended) == 2000
        violations[multiple] = 1.0 - good / 2000
    assert violations[1.0] < violations[3.0] <= violations[None]
    assert violations[None] > 0.9
