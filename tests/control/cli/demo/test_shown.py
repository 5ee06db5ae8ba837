"""The console's and the boards' figures beside the load client's."""

from dataclasses import replace
from typing import Any

import pytest

from tests.control.api.test_summary import GROUP
from tidegate.control.cli.demo.conclusion import groups_at_most, shown_beside_client
from tidegate.control.cli.demo.records import Look, Records
from tidegate.control.cli.demo.shown import BoardFigures, Pair, agreement, compare
from tidegate.control.views.functions import TrafficView
from tidegate.loadgen.clients.outcomes import RequestOutcome

LAG_S = 0.004
BOARDS = BoardFigures(
    requests_per_s=((16.5, 165 / 60), (17.5, 175 / 60)),
    p50_s=((17.5, 0.02),),
    tail_s=((16.5, 0.3), (17.5, 0.3)),
    within_sla=((17.5, 0.9),),
)
"""What the boards show of the first 17.5 s of :func:`records`."""


def look(at_s: float, ready: int, rate: float, answered: int, in_all: int, **figures: Any) -> Look:
    known = {"p50_s": 0.02, "tail_s": 0.3, "within_sla": round(0.9 * answered)} | figures
    traffic = TrafficView(window_s=60.0, requests_per_s=rate, answered=answered, ended_in_all=in_all, **known)
    return Look(
        at_s=at_s,
        unix=1000.0 + at_s,
        ready=ready,
        starting=0,
        leaving=0,
        desired=ready,
        waiting=0,
        traffic=traffic,
        groups=(GROUP,),
    )


def looks(first: float, ready: int, rate: float, answered: int, in_all: int, **figures: Any) -> list[Look]:
    return [look(first + 0.5 * number, ready, rate, answered, in_all, **figures) for number in range(6)]


def records(*found: list[Look]) -> Records:
    """Ten requests a second for 20 s, then 20, each sent 4 ms late; every tenth takes 0.3 s, against a target of
    0.2 s."""
    times = [0.1 * number for number in range(200)] + [20.0 + 0.05 * number for number in range(400)]
    outcomes = [
        RequestOutcome(at_s, LAG_S + (0.3 if number % 10 == 0 else 0.02), 1, 200, lag_s=LAG_S)
        for number, at_s in enumerate(times)
    ]
    story = [each for part in found for each in part]
    return Records(latency_s=0.2, percentile=98.0, outcomes=outcomes, looks=story)


def test_each_part_of_the_story_has_the_figures_of_the_same_requests() -> None:
    seen = records(
        looks(-3.0, 0, 99.0, 0, 0),  # before the load
        looks(15.0, 1, 10.0, 175, 175),
        looks(30.0, 2, 20.1, 400, 400),
        [look(33.5, 1, 99.0, 400, 400)],  # too short to be compared
        looks(45.0, 0, 0.0, 400, 600),
    )
    found = compare(seen)
    assert [(each.ready, each.looks, each.until_s, each.requests) for each in found] == [
        (1, 6, 17.5, 175),
        (2, 6, 32.5, 400),
        (0, 6, 47.5, 400),
    ]
    one, two, none = found
    assert one.console.requests_per_s.client == pytest.approx(10.0)
    assert two.console.requests_per_s.client == pytest.approx(20.0)
    assert two.console.requests_per_s.difference == pytest.approx(0.005)
    assert (one.console.p50_s.client, one.console.tail_s.client) == pytest.approx((0.02, 0.3))
    assert (one.due_p50_s, one.due_tail_s) == pytest.approx((0.024, 0.304))
    assert two.console.within_sla.client == pytest.approx(0.9, abs=0.005)
    assert none.console.p50_s.difference == pytest.approx(0.0)


def test_requests_before_the_load_are_among_those_of_the_console() -> None:
    seen = records(looks(15.0, 1, 10.0, 185, 185))
    seen.asked = [RequestOutcome(-1.0 - number, 0.1, 1, 200) for number in range(10)]
    (found,) = compare(seen)
    assert found.requests == 185
    assert found.console.within_sla.client == pytest.approx((10 + 0.9 * 175) / 185, abs=0.006)


def test_two_percent_decide_and_the_figure_that_is_most_off_is_named() -> None:
    seen = records(looks(15.0, 1, 10.0, 175, 175, p50_s=0.0203, within_sla=157))
    good = agreement(compare(seen, [BOARDS]))
    assert good.holds
    assert good.text == (
        "The console's and the boards' figures are within 2 % of the client's at 1 replicas ready; "
        "most off: p50 of the console at 1 ready, 1.5%."
    )
    off = agreement(compare(seen, [replace(BOARDS, tail_s=((16.5, 0.3), (17.5, 0.34)))]))
    assert not off.holds
    assert off.text == (
        "The console's and the boards' figures differ from the client's by up to 6.7%: tail of the boards at 1 ready."
    )
    assert "figures differ" in agreement(compare(records(looks(15.0, 1, 10.3, 175, 175)))).text
    missing = agreement(compare(seen, [replace(BOARDS, requests_per_s=())]))
    assert missing.text == "Figures are missing: requests/s of the boards at 1 ready."
    assert not agreement(()).holds


def test_the_boards_percentiles_are_of_the_requests_of_the_console_beside_the_scrape() -> None:
    """Each request takes 1 % longer than the one before it. The median of the console's 100 newest requests is that of
    the one in their middle, and grows by 28 % in the 25 requests of a reading."""
    outcomes = [RequestOutcome(0.1 * number, 0.001 * 1.01**number, 1, 200) for number in range(400)]

    def served_s(number: int) -> float:
        return outcomes[number].served_s

    looks = [look(20.0 + each, 1, 10.0, 100, 200 + 25 * each, p50_s=served_s(149 + 25 * each)) for each in range(6)]
    seen = Records(latency_s=10.0, percentile=98.0, outcomes=outcomes, looks=looks)

    def boards_p50(at_s: float, shown_s: float) -> float | None:
        curve = ((at_s, shown_s),)
        (found,) = compare(seen, [replace(BOARDS, p50_s=curve, tail_s=curve)])
        assert found.boards is not None
        return found.boards.p50_s.difference

    assert boards_p50(22.3, served_s(199)) == pytest.approx(0.0, abs=1e-6), "those of the reading before"
    assert boards_p50(22.3, served_s(224)) == pytest.approx(0.0, abs=1e-6), "those of the reading after"
    half = boards_p50(22.3, served_s(206))
    assert half is not None
    assert abs(half) > 0.03, "requests of no reading, although the console had them within the second"
    late = boards_p50(22.3, served_s(274))
    assert late is not None
    assert abs(late) > 0.2, "those of a later reading"


def test_a_percentile_that_was_scraped_where_the_console_was_read_too_seldom_is_not_compared() -> None:
    """Between the readings at 22 and at 25 s the windows were those of two pulls that no reading has."""
    outcomes = [RequestOutcome(0.1 * number, 0.001 * 1.01**number, 1, 200) for number in range(400)]
    at = (20.0, 21.0, 22.0, 25.0, 26.0, 27.0)
    looks = [look(each, 1, 10.0, 100, 25 * int(each) - 300) for each in at]
    seen = Records(latency_s=10.0, percentile=98.0, outcomes=outcomes, looks=looks)
    between = outcomes[225].served_s
    for scraped, is_compared in ((20.5, True), (21.5, False), (23.5, False), (25.5, False), (26.5, True)):
        curve = ((scraped, between),)
        (found,) = compare(seen, [replace(BOARDS, p50_s=curve, tail_s=curve)])
        assert found.boards is not None
        assert found.boards.p50_s.shown == between
        assert (found.boards.p50_s.client is not None) == is_compared
        assert not found.boards.p50_s.is_missing


def test_the_boards_rates_are_compared_over_whole_windows_in_which_requests_are_sent() -> None:
    seen = records(looks(45.0, 0, 0.0, 400, 600))
    board = replace(BOARDS, p50_s=((46.0, 0.02),), tail_s=((46.0, 0.3),))
    (found,) = compare(seen, [replace(board, requests_per_s=((39.0, 10.5), (46.0, 10.5)))])
    assert found.boards is not None
    assert (found.boards.requests_per_s.client, found.boards.requests_per_s.shown) == (None, 10.5), "no window is whole"
    seen.asked = [RequestOutcome(-30.0, 0.1, 1, 200)]
    (found,) = compare(seen, [replace(board, requests_per_s=((29.0, 9.0), (39.0, 9.6), (46.0, 10.5)))])
    assert found.boards is not None
    assert found.boards.requests_per_s.client == pytest.approx(580 / 60, abs=0.1)
    assert found.boards.requests_per_s.shown == 9.6


def test_a_figure_without_a_client_has_no_difference() -> None:
    assert Pair(client=None, shown=1.0).difference is None
    assert Pair(client=0.0, shown=1.0).difference is None
    assert Pair(client=4.0, shown=None).difference is None


def test_the_tables_name_both_figures_and_the_groups_at_the_peak() -> None:
    seen = records(looks(15.0, 1, 10.0, 175, 175))
    console, boards = shown_beside_client(compare(seen, [BOARDS]), "p98")
    assert console.rows[0][:4] == ("1", "18 s", "10.0 / 10.0 (+0.0 %)", "20 ms / 20 ms (+0.0 %)")
    assert console.rows[0][6:] == ("24 ms", "304 ms")
    assert boards.rows[0][4] == "300 ms / 300 ms (+0.0 %)"
    assert shown_beside_client(compare(seen), "p98")[1].rows == ()
    assert groups_at_most(seen).rows[0][0] == GROUP.accelerator
    rates = (1.0, 9.0, 2.0, 0.0, 0.0, 0.0)
    seen.looks = [replace(each, groups=(replace(GROUP, ips=ips),)) for each, ips in zip(seen.looks, rates, strict=True)]
    assert groups_at_most(seen).rows[0][3] == "9.0/s", "under the most load"
    assert groups_at_most(records()).rows == ()
