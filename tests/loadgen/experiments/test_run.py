"""Running: order, interruptions, equal results."""

import pytest

from tests.loadgen.experiments.small import Heard, small
from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.judge import Judgement
from tidegate.loadgen.experiments.report import record
from tidegate.loadgen.experiments.run import run
from tidegate.records.codec import encode


def test_experiments_come_one_after_the_other_each_with_its_seeds() -> None:
    heard = Heard()
    report = run([small(), small(**{'"small"': '"other"'})], heard)
    first, second = report.results
    assert heard.reported == [("small", 1), ("small", 2), first, ("other", 1), ("other", 2), second]
    assert report.holds and not report.is_partial
    assert first.seeds == (1, 2)


def test_the_number_of_seeds_can_be_said() -> None:
    assert run([small()], Heard(), seeds=3).results[0].seeds == (1, 2, 3)


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    def outcomes(count: int) -> list[bytes]:
        return [encode(record(each)) for each in run([small()], Heard(), seeds=count).results]

    assert outcomes(2) == outcomes(2)
    assert outcomes(2) != outcomes(1)


def test_an_interruption_keeps_what_is_finished() -> None:
    heard = Heard(interrupt_after=("b", 1))
    report = run([small(**{'"small"': f'"{name}"'}) for name in "abc"], heard)
    a, b = report.results
    assert (a.experiment.name, a.seeds, a.is_partial) == ("a", (1, 2), False)
    assert (b.experiment.name, b.seeds, b.is_partial) == ("b", (1,), True)
    assert report.not_run == ("c",) and report.is_partial
    assert [each for each in heard.reported if isinstance(each, Judgement)] == [a, b]


def test_an_interruption_before_anything_is_finished_leaves_nothing() -> None:
    class Early(Heard):
        def seed(self, *_: object) -> None:
            raise KeyboardInterrupt

    report = run([small()], Early())
    assert [each.seeds for each in report.results] == [(1,)]


def test_a_check_of_an_unknown_figure_stops_after_the_first_seed() -> None:
    heard = Heard()
    with pytest.raises(InvalidInputError, match=r"checks\[1\]\.figure: got hpa_median"):
        run([small(hpa_mean_s="hpa_median")], heard, seeds=50)
    assert heard.reported == []
