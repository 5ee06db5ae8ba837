"""The figures of a benchmark: ratios are taken per round, bounds are judged on the median."""

import pytest

from benchmarks.macro.report import Book, markdown, missing, percentile, pooled, table


def test_percentile_is_a_value_that_was_seen() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert percentile(values, 50) == 3.0
    assert percentile(values, 99) == 5.0
    assert percentile(values, 0) == 1.0


@pytest.mark.parametrize(
    ("rounds", "lengths"),
    [(1, [1]), (5, [5]), (6, [6]), (11, [11]), (12, [6, 6]), (24, [6, 6, 6, 6]), (25, [6, 6, 6, 7])],
)
def test_rounds_are_pooled_by_six_and_the_last_figure_has_those_that_are_left_over(
    rounds: int, lengths: list[int]
) -> None:
    found = pooled([[float(number)] for number in range(rounds)], 6)
    assert [len(each) for each in found] == lengths
    assert [value for each in found for value in each] == [float(number) for number in range(rounds)]


def book() -> Book:
    """A machine that is twice as slow in the second round: absolute times move, ratios do not."""
    made = Book("small")
    for slow, noise in ((1.0, 1.0), (2.0, 1.0), (1.0, 1.2)):
        made.add("post", "nginx", cpu_us=10.0 * slow)
        made.add("post", "ours", cpu_us=15.0 * slow * noise, p99_us=90.0)
    return made


def test_the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_the_medians() -> None:
    row = book().row("post", "ours", "cpu_us", against="nginx", bound=1.6)
    assert (row.ratio, row.ratio_min, row.ratio_max, row.holds) == (1.5, 1.5, 1.8, True)
    assert (row.value, row.value_min, row.value_max, row.rounds) == (18.0, 15.0, 30.0, 3)


@pytest.mark.parametrize(
    ("bound", "least", "holds"), [(1.5, False, True), (1.49, False, False), (1.5, True, True), (1.51, True, False)]
)
def test_a_bound_includes_itself(bound: float, least: bool, holds: bool) -> None:
    assert book().row("post", "ours", "cpu_us", against="nginx", bound=bound, least=least).holds is holds


def test_without_a_peer_the_bound_is_on_the_value() -> None:
    row = book().row("post", "ours", "p99_us", bound=80.0)
    assert (row.ratio, row.holds) == (None, False)


def test_one_measure_against_another_of_the_peer() -> None:
    row = book().row("post", "ours", "p99_us", against="nginx", their_measure="cpu_us")
    assert (row.against, row.ratio) == ("nginx cpu_us", 9.0)


def test_a_peer_that_is_absent_is_named_and_nothing_is_judged() -> None:
    row = book().row("post", "ours", "cpu_us", against="go", bound=0.5)
    assert (row.ratio, row.holds) == (None, None)
    assert row.note == "not measured: no go beside it"


def test_a_peer_that_adds_nothing_gives_no_number_and_a_missed_bound() -> None:
    made = Book("latency")
    made.add("2000/s", "nginx", added_p50_us=-1.0)
    made.add("2000/s", "ours", added_p50_us=3.0)
    row = made.row("2000/s", "ours", "added_p50_us", against="nginx", bound=1.8)
    assert (row.ratio, row.holds) == (None, False)


def test_records_leave_out_what_is_unknown_and_keep_a_missed_bound() -> None:
    record = book().row("post", "ours", "p99_us", bound=80.0).record()
    assert record["holds"] is False
    assert "ratio" not in record
    assert "least" not in record
    assert missing("small", "post", "go", "no toolchain").record()["note"] == "not measured: no toolchain"


def test_tables_mark_what_is_missed() -> None:
    rows = [book().row("post", "ours", "cpu_us", against="nginx", bound=1.2), missing("small", "-", "go", "no Go")]
    assert table(rows).splitlines()[1].split() == [
        *("small", "post", "ours", "cpu_us", "18", "1.50", "x", "nginx", "1.5–1.8", "≤", "1.2", "MISSED")
    ]
    assert markdown(rows).splitlines()[-1] == "| small | - | go | - | - |  |  |  | not measured: no Go |"
