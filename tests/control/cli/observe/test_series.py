"""``tidegate series``: figures and bars of each line."""

import pytest

from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.observe.series import bars, table
from tidegate.control.views.functions import SeriesLineView, SeriesView


def test_bars_go_from_nothing_to_the_largest() -> None:
    assert bars([0.0, 1.0, 4.0, None, 8.0]) == "▁▂▅ █"
    assert bars([0.0, 0.0]) == "▁▁"
    assert bars([None, None]) == "  "
    assert bars([]) == ""


def test_a_line_has_its_last_known_mean_and_largest_value() -> None:
    line = SeriesLineView(metric="mu_ips", group="t4", unit="inferences/s", points=((1, 60.0), (2, 70.0), (3, None)))
    nothing = SeriesLineView(metric="latency_s", group=None, unit="s", points=((1, None),))
    found = table(SeriesView(function="f", step_s=1, lines=(line, nothing), refused=0))
    cells = [list(column.cells) for column in found.columns]
    assert [column[0] for column in cells] == ["t4", "mu_ips", "70", "65", "70", "inferences/s", "▇█ "]
    assert [column[1] for column in cells] == ["-", "latency_s", "-", "-", "-", "s", " "]


@pytest.mark.parametrize("option", ["--since", "--step"])
def test_a_bad_duration_is_wrong_input(option: str) -> None:
    result = tidegate("series", "echo", option, "soon")
    assert result.exit_code == 2
    assert f"{option}: got 'soon'; allowed: a duration" in result.stderr


@pytest.mark.parametrize(
    ("option", "text"), [("--since", "0"), ("--since", "5h"), ("--step", "0.5s"), ("--step", "5h")]
)
def test_a_duration_that_is_not_kept_is_reported_before_anything_is_asked(option: str, text: str) -> None:
    result = tidegate("series", "echo", option, text)
    assert result.exit_code == 2
    assert f"{option}: got '{text}'; allowed: a duration of 1s to 4h" in result.stderr


def test_bad_durations_are_reported_at_once() -> None:
    result = tidegate("series", "echo", "--since", "soon", "--step", "-1")
    assert result.exit_code == 2
    assert "--since: got 'soon'" in result.stderr
    assert "--step: got '-1'" in result.stderr
