"""Counting of one worker: every request ends one way; waiting is an integral; samples count up."""

from dataclasses import fields

import pytest

from tidegate.activator.room import RoomCounts
from tidegate.flow.outliers import Outliers
from tidegate.gateway.counting.counters import KEPT_COLD_STARTS, KEPT_LATENCIES, Report
from tidegate.gateway.counting.outcomes import Ending
from tidegate.histogram import bucket_index, fine_buckets, quantile
from tidegate.metrics import Exposition
from tidegate.records import codec
from tidegate.records.gateway_sample import ColdStartSeen, GatewaySample
from tidegate.records.replica_state import ColdStartPhases, known_phases
from tidegate.records.route_table import OutlierRules


def counts(**known: float) -> RoomCounts:
    zero = dict.fromkeys((field.name for field in fields(RoomCounts)), 0)
    return RoomCounts(**(zero | known))  # type: ignore[arg-type]  # whole numbers where whole numbers belong


def none_waits(_: str) -> RoomCounts | None:
    return None


def revisions(report: Report) -> list[str]:
    return [
        demand.revision
        for demand in report.sample(1.0, table=(0, 0), connections=0, demands=report.demands(none_waits)).demands
    ]


def test_fine_latencies_are_those_since_the_last_sample_and_bounded() -> None:
    report = Report("g0", "inc", now=100.0)
    held = report.revision("resnet", "resnet-00001")
    for latency_s in (0.001, 0.001, 0.1):
        held.ended_well("t4", 1, latency_s, None)
    assert held.demand(None).recent == fine_buckets((0.001, 0.001, 0.1))
    assert held.demand(None).recent == ()
    for _ in range(KEPT_LATENCIES + 10):
        held.ended_well("t4", 1, 0.001, None)
    assert held.demand(None).recent == fine_buckets([0.001] * KEPT_LATENCIES)


def test_a_conversation_ends_in_a_sample_whose_parts_add_up() -> None:
    report = Report("g0", "inc", now=100.0)
    held = report.revision("resnet", "resnet-00001")
    for inferences in (1, 2, 4, 8, 16, 32):
        held.sizes[bucket_index(inferences)] += 1
        held.arrivals_inferences += inferences
    held.ended_well("t4", 1, 0.050, 0.1)
    held.ended_well("v100", 2, 0.500, 0.1)
    held.ended(Ending.FAILED, "t4", 4)
    held.ended(Ending.REFUSED, "", 8)
    held.ended(Ending.EXPIRED, "t4", 16)
    sample = report.sample(
        101.0,
        table=(3, 7),
        connections=5,
        demands=report.demands(lambda _: counts(waiting=3, waiting_inferences=9, oldest_waiting_s=0.25)),
    )
    assert (sample.sequence, sample.uptime_s, sample.table_epoch, sample.table_number) == (1, 1.0, 3, 7)
    (demand,) = sample.demands
    assert (demand.arrivals, demand.arrivals_inferences) == (6, 63)
    assert [count for _, count in demand.sizes] == [1] * 6
    assert (demand.answered, demand.failed, demand.refused, demand.expired, demand.cancelled) == (2, 1, 1, 1, 0)
    assert demand.within_sla == 1
    assert (demand.waiting, demand.waiting_inferences, demand.oldest_waiting_s) == (3, 9, 0.25)
    assert held.open == 1
    assert quantile(demand.latency, 1.0) == pytest.approx(0.5, rel=1 / 8)
    by_group = {group.group: (group.requests, group.inferences, group.failures) for group in demand.groups}
    assert by_group == {"t4": (2, 5, 1), "v100": (1, 2, 0)}, "an expired request is not the group's work"
    assert codec.decode(codec.encode(sample), GatewaySample) == sample


def test_revisions_that_left_the_table_are_forgotten_once_their_requests_ended() -> None:
    report = Report("g0", "inc", now=0.0)
    report.revision("f", "f-00001")
    held = report.revision("f", "f-00002")
    held.sizes[1] += 1
    report.forget_except(frozenset())
    assert revisions(report) == ["f-00002"]
    held.ended(Ending.CANCELLED, "", 1)
    report.forget_except(frozenset())
    assert revisions(report) == []


def test_cold_starts_are_kept_newest_last_and_bounded() -> None:
    report = Report("g0", "inc", now=0.0)
    for number in range(KEPT_COLD_STARTS + 1):
        phases = ColdStartPhases(load_s=float(number), first_response_s=0.01)
        report.cold_start(ColdStartSeen(function="f", revision="f-00001", replica=f"r{number}", phases=phases))
    sample = report.sample(1.0, table=(0, 0), connections=0, demands=report.demands(none_waits))
    assert len(sample.cold_starts) == KEPT_COLD_STARTS
    assert sample.cold_starts[-1].replica == f"r{KEPT_COLD_STARTS}"
    assert list(known_phases(sample.cold_starts[-1].phases)) == [("load", 64.0), ("first_response", 0.01)]


def test_the_scrape_shows_every_ending() -> None:
    report = Report("g0", "inc", now=0.0)
    held = report.revision("f", "f-00001")
    held.sizes[1] += 2
    held.ended(Ending.CANCELLED, "", 2)
    held.ended_well("cpu", 2, 0.1, None)
    held.dropped = 6
    held.retries, held.retries_denied, held.hedges, held.hedges_won, held.circuit_refusals = 1, 2, 3, 4, 5
    outliers = Outliers()
    for begun in (1.0, 2.0):
        outliers.failed("r1", "f-00001", OutlierRules(failures=2), begun, begun + 0.5, ready=3)
    text = Exposition()
    steps = report.expose(
        text, 5.0, table=(1, 2), connections=3, waiting=none_waits, outliers=outliers, log_lines_dropped=6, body_bytes=7
    )
    assert list(steps) == [None], "one step for each revision"
    lines = text.render().decode().splitlines()
    assert 'tidegate_gateway_connections{worker="g0"} 3' in lines
    assert 'tidegate_gateway_ended_requests_total{function="f",revision="f-00001",outcome="cancelled"} 1' in lines
    assert 'tidegate_gateway_ended_requests_total{function="f",revision="f-00001",outcome="refused"} 0' in lines
    assert 'tidegate_gateway_group_inferences_total{function="f",revision="f-00001",group="cpu"} 2' in lines
    assert 'tidegate_gateway_latency_seconds_count{function="f",revision="f-00001"} 1' in lines
    assert 'tidegate_gateway_access_log_dropped_lines_total{worker="g0"} 6' in lines
    assert 'tidegate_gateway_waiting_body_bytes{worker="g0"} 7' in lines
    labels = '{function="f",revision="f-00001"}'
    for name, value in (
        ("retries_total", 1),
        ("denied_retries_total", 2),
        ("hedges_total", 3),
        ("won_hedges_total", 4),
        ("circuit_refused_requests_total", 5),
        ("dropped_requests_total", 6),
        ("ejections_total", 1),
        ("ejected_replicas", 1),
        ("circuit_open", 0),
    ):
        assert f"tidegate_gateway_{name}{labels} {value}" in lines


def test_integrals_do_not_run_backwards_when_the_room_forgets_a_revision_before_its_last_request_ends() -> None:
    """A function was deleted while a request of it ran."""
    report = Report("g0", "inc", now=0.0)
    report.revision("echo", "echo-00001").sizes[0] += 1
    counted = counts(waiting=1, waiting_request_s=2.5, waiting_inference_s=5.0)
    (before,) = report.demands(lambda _: counted)
    report.forget_except(frozenset())
    (after,) = report.demands(none_waits)
    assert (before.waiting, after.waiting) == (1, 0)
    assert (after.waiting_request_s, after.waiting_inference_s) == (2.5, 5.0)
