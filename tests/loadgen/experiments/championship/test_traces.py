"""The traces: seeded, as long as asked, files found in the user's folder."""

import gzip
from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.championship.traces import LEAGUES, Lengths

SHORT = Lengths(learn_s=60.0, judged_s=240.0)
MADE = [name for name, league in LEAGUES.items() if league.made is not None]


@pytest.mark.parametrize("name", MADE)
def test_equal_seeds_give_equal_arrivals_that_rise_and_end_in_time(name: str) -> None:
    first, second, other = (list(LEAGUES[name].arrivals(SHORT, None, seed)) for seed in (1, 1, 2))
    assert first == second != other
    times = [each.at_s for each in first]
    assert times == sorted(times)
    assert times[0] >= 0.0 and times[-1] < SHORT.total_s


def test_spikes_are_a_multiple_of_the_base_for_minutes() -> None:
    counts: dict[int, int] = {}
    for each in LEAGUES["spike"].arrivals(Lengths(learn_s=0.0, judged_s=4 * 3600.0), None, 1):
        minute = int(each.at_s // 60)
        counts[minute] = counts.get(minute, 0) + 1
    rates = [count / 60.0 for count in counts.values()]
    assert sorted(rates)[len(rates) // 2] == pytest.approx(30.0, rel=0.1)
    high = sum(rate > 75.0 for rate in rates)
    assert max(rates) < 200.0 and 6 <= high <= 40


def test_a_quick_run_is_an_hour() -> None:
    assert {league.quick().total_s for league in LEAGUES.values()} <= {3000.0, 3600.0}


def test_a_file_is_found_by_its_name_packed_or_not(tmp_path: Path) -> None:
    league = LEAGUES["twitter"]
    assert league.find(None) is None
    assert league.find(tmp_path) is None
    packed = tmp_path / "twitter_rps.txt.gz"
    packed.write_bytes(gzip.compress(b"1\n"))
    assert league.find(tmp_path) == packed


def test_the_judged_part_of_a_file_of_counts_begins_where_the_trace_says(tmp_path: Path) -> None:
    path = tmp_path / "twitter.txt"
    begins = int(LEAGUES["twitter"].begins_s)
    path.write_text("0\n" * (begins - 2) + "1\n2\n3\n4\n", encoding="utf-8")
    found = list(LEAGUES["twitter"].arrivals(Lengths(learn_s=2.0, judged_s=2.0), path, 1))
    assert [sum(int(each.at_s) == second for each in found) for second in range(4)] == [1, 2, 3, 4]


def test_a_file_that_is_too_short_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "twitter.txt"
    path.write_text("5\n" * 100, encoding="utf-8")
    with pytest.raises(InvalidInputError, match="trace: got 100 s; allowed: at least 864300 s"):
        LEAGUES["twitter"].arrivals(Lengths(learn_s=0.0, judged_s=300.0), path, 1)
