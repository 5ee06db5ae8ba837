"""The page of a profile."""

from dataclasses import replace

from tests.loadgen.profiling.test_points import START
from tests.loadgen.profiling.test_profile_text import grid
from tidegate.loadgen.profile_file import parse
from tidegate.loadgen.profiling.points import ProfileLine
from tidegate.loadgen.profiling.profile_page import HEADS, figures, profile_page
from tidegate.loadgen.profiling.profile_text import profile_text


def test_the_page_has_curves_and_every_figure() -> None:
    measured = grid()
    measured.left_out.append("t4, batch <16>: out of memory")
    text = profile_page("resnet", measured, is_partial=True)
    assert text.count("<svg") == 2
    assert "Profile of resnet" in text
    assert "this profile is partial" in text
    assert "batch &lt;16&gt;: out of memory" in text
    assert text.count("<td>t4</td>") == len(measured.points) + 1
    assert "2.6 s" in text
    assert "268 MB" in text


def test_a_whole_page_says_nothing_of_an_interruption() -> None:
    assert "partial" not in profile_page("resnet", grid(), is_partial=False)


def test_a_row_has_a_cell_for_each_heading() -> None:
    measured = grid()
    for point in measured.rows():
        assert len(figures(point, measured)) == len(HEADS)


def test_an_emulated_accelerator_is_named_as_one_everywhere() -> None:
    measured = grid()
    measured.add(ProfileLine(source="a", start=replace(START, is_emulated=True)))
    text = profile_page("resnet", measured, is_partial=False)
    assert text.count("t4 (emulated)") == len(measured.points) + 1 + 4, "rows, starts, two curves in two plots"
    assert "emulated: true" in profile_text(measured)
    assert parse(profile_text(measured), source="p.yaml")
