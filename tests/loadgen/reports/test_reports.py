"""From calls to counts to reports: bounded memory, figures that can be checked by hand."""

import pytest

from tidegate.loadgen.clients.call import Call, Request, WantedSla
from tidegate.loadgen.progress import Progress
from tidegate.loadgen.reports import text
from tidegate.loadgen.reports.record import About, LoadReport, report_of
from tidegate.loadgen.reports.tally import MAX_KINDS, MAX_SLOTS, OTHER, Tally

BEGAN = 100.0


def call(due_s: float, latency_s: float, *, code: str | None = "200", error: str | None = None, **more: float) -> Call:
    made = Call(Request(b"", int(more.get("inferences", 1))), BEGAN + due_s)
    made.sent = made.due + more.get("lag_s", 0.0)
    made.ended = made.due + latency_s
    made.code, made.error, made.is_good = code, error, code in ("200", "OK")
    return made


def tallied(*calls: Call, sla: WantedSla | None = None) -> Tally:
    tally = Tally(sla)
    for each in calls:
        tally.add(each, BEGAN)
    return tally


def report(tally: Tally, **more: object) -> LoadReport:
    given: dict[str, object] = {
        "target": "t",
        "mode": "m",
        "protocol": "http",
        "seed": 1,
        "is_partial": False,
        "began": "2026-01-01T00:00:00+00:00",
        "sent": tally.ended,
        "wall_s": 10.0,
        "cpu_s": 1.0,
    }
    return report_of(tally, About(**(given | more)))  # type: ignore[arg-type]  # the same keys


def test_the_latency_table_is_the_theses() -> None:
    made = report(tallied(*(call(0.01 * number, 0.001 * number) for number in range(1, 101))))
    assert made.latency is not None
    assert list(made.latency.percentiles_s) == ["10", "25", "50", "75", "90", "95", "99"]
    for percent, value in made.latency.percentiles_s.items():
        assert value == pytest.approx(int(percent) / 1e3, rel=0.005)
    assert (made.latency.fastest_s, made.latency.slowest_s) == pytest.approx((0.001, 0.1))
    assert made.latency.mean_s == pytest.approx(0.0505)
    assert made.rate_per_s == pytest.approx(100 / 1.1)


def test_failures_count_by_kind_and_not_in_latencies() -> None:
    tally = tallied(
        call(0.0, 0.1, inferences=4),
        call(0.0, 9.0, code="429", error="queue_full"),
        call(0.0, 9.0, code="503"),
        call(0.0, 9.0, code=None, error="timeout"),
    )
    made = report(tally, sent=6)
    assert made.codes == {"200": 1, "429": 1, "503": 1}
    assert made.errors == {"queue_full": 1, "status 503": 1, "timeout": 1}
    assert (made.sent, made.answered, made.good, made.unfinished) == (6, 3, 1, 2)
    assert made.latency is not None
    assert made.latency.slowest_s == pytest.approx(0.1)
    assert made.inferences_per_s == pytest.approx(4 / 9.0)


def test_the_sla_is_of_all_that_ended() -> None:
    calls = [call(0.0, 0.1) for _ in range(97)] + [call(0.0, 0.3), call(0.0, 0.1, code="503"), call(0.0, 0.2)]
    for percentile, is_met in ((98.0, True), (98.1, False)):
        sla = report(tallied(*calls, sla=WantedSla(0.2001, percentile))).sla
        assert sla is not None
        assert (sla.within, sla.is_met) == (98.0, is_met)
    assert report(tallied(*calls)).sla is None


def test_what_leaves_late_of_a_busy_client_makes_it_the_bottleneck() -> None:
    calls = [call(0.0, 0.5, lag_s=0.021) for _ in range(2)] + [call(0.0, 0.5) for _ in range(98)]
    made = report(tallied(*calls), cpu_s=6.0)
    assert (made.client.late, made.client.is_bottleneck) == (2, True)
    assert "THE CLIENT IS THE BOTTLENECK" in text.text(made)
    assert not report(tallied(*calls[1:], call(0.0, 0.5)), cpu_s=6.0).client.is_bottleneck
    assert report(tallied(call(0.0, 0.1)), cpu_s=9.0).client.is_bottleneck
    assert made.latency is not None
    assert made.service is not None
    assert made.service.fastest_s == pytest.approx(0.5 - 0.021)
    assert "latency of the 100 good requests, from when each was due" in text.text(made)


def test_an_idle_client_that_leaves_late_got_no_processor_and_is_no_bottleneck() -> None:
    made = report(tallied(*(call(0.0, 0.5, lag_s=0.03) for _ in range(10))), cpu_s=1.0)
    assert (made.client.is_bottleneck, made.client.is_starved) == (False, True)
    assert "the machine had no processor free in time" in text.text(made)


def test_what_waits_for_a_slow_server_is_held_back_and_not_late() -> None:
    calls = [call(0.0, 0.5, lag_s=0.03) for _ in range(10)]
    for each in calls:
        each.is_held = True
    made = report(tallied(*calls), cpu_s=6.0)
    assert (made.client.late, made.client.held, made.client.is_bottleneck, made.client.is_starved) == (
        0,
        10,
        False,
        False,
    )
    assert "held back     10, with as many in flight as --connections allows" in text.text(made)


def test_time_is_kept_in_a_bounded_number_of_slots() -> None:
    tally = tallied(*(call(float(second), 0.1) for second in range(3 * MAX_SLOTS)))
    assert tally.slot_s == 4.0
    assert len(tally.slots) == 3 * MAX_SLOTS // 4
    assert {slot.good for slot in tally.slots} == {4}
    assert {slot.latency.total for slot in tally.slots} == {4}
    assert {each.answered_per_s for each in report(tally).seconds} == {1.0}


def test_kinds_of_failures_are_bounded() -> None:
    tally = tallied(*(call(0.0, 0.1, code="500", error=f"kind{number}") for number in range(2 * MAX_KINDS)))
    assert len(tally.errors) == MAX_KINDS + 1
    assert tally.errors[OTHER] == MAX_KINDS


def test_streams_have_their_own_tables() -> None:
    made = call(0.0, 1.0)
    made.began = made.first = made.due + 0.2
    made.gaps, made.tokens = [0.1, 0.3], 3
    found = report(tallied(made, call(0.0, 2.0))).tokens
    assert found is not None
    assert (found.streams, found.tokens, found.tokens_per_s) == (1, 3, 1.5)
    assert found.first is not None
    assert found.between is not None
    assert found.first.mean_s == pytest.approx(0.2)
    assert (found.between.count, found.between.slowest_s) == (2, 0.3)
    assert "time between outputs" in text.text(report(tallied(made)))


def test_a_stream_is_in_time_only_with_its_tokens() -> None:
    def stream(gap_s: float, tokens: int = 11) -> Call:
        made = call(0.0, 0.2 + 10 * gap_s)
        made.began = made.first = made.due + 0.2
        made.gaps, made.tokens = [gap_s] * 10, tokens
        return made

    calls = [stream(0.04), stream(0.06), stream(0.06, tokens=21), call(0.0, 0.1)]
    paced = report(tallied(*calls, sla=WantedSla(0.5, 75.0, 0.05)))
    assert paced.sla is not None
    assert (paced.sla.within, paced.sla.is_met, paced.sla.per_token_s) == (75.0, True, 0.05)
    assert "75.00 % within 500 ms and 50 ms per output token, 75 % wanted" in text.text(paced)
    alone = report(tallied(*calls, sla=WantedSla(0.5, 75.0)))
    assert alone.sla is not None
    assert alone.sla.within == 100.0


@pytest.mark.parametrize(("protocol", "beginning"), [("http", "first byte"), ("openai", "first output")])
def test_a_stream_is_judged_by_its_beginning_and_its_end_is_printed_too(protocol: str, beginning: str) -> None:
    made = call(0.0, 2.0)
    made.began = made.due + 0.2
    found = report(tallied(made, sla=WantedSla(0.5, 98.0)), protocol=protocol)
    assert found.sla is not None
    assert found.sla.is_met
    assert found.latency is not None
    assert found.whole is not None
    assert (found.latency.slowest_s, found.whole.slowest_s) == pytest.approx((0.2, 2.0))
    printed = text.text(found)
    assert f"within 500 ms, 98 % wanted, a stream until its {beginning}" in printed
    assert f"latency of the 1 good requests to the {beginning}, from when each was due" in printed
    assert "latency of the good streams to their end, from when each was due" in printed
    assert "to the first" not in text.text(report(tallied(call(0.0, 2.0))))


def test_csv_has_a_row_for_each_slot() -> None:
    made = report(tallied(call(0.0, 0.1, inferences=3), call(2.0, 0.1, code="500")))
    assert text.csv(made).splitlines() == [
        text.CSV_HEAD,
        "0,1,1,3,100.000,100.000",
        "1,0,0,0,,",
        "2,1,0,0,,",
    ]


def test_an_interrupted_report_says_so() -> None:
    assert text.text(report(tallied(call(0.0, 0.1)), is_partial=True)).startswith("INTERRUPTED")
    empty = text.text(report(tallied(), sent=3))
    assert "3 sent, 0 answered, 0 good, 3 unfinished" in empty


def test_progress_tells_the_rate_since_it_was_last_asked() -> None:
    tally = tallied(*(call(0.01 * number, 0.1) for number in range(100)))
    progress = Progress(tally, 30.0)
    first = progress.figures(2.0, 110, 10)
    assert (first["time"], first["rate"], first["p50"]) == ("2 s of 30 s", "50/s", "100 ms")
    assert first["requests"] == "110 sent, 100 good, 0 failed, 10 on the way"
    tally.add(call(3.0, 0.1, code="500"), BEGAN)
    assert progress.figures(4.0, 111, 0)["rate"] == "0/s"
