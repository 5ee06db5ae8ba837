"""Phases of a cold start as a record and as a short text."""

import pytest

from tidegate.records.cold_start_phases import ColdStartPhases, known_phases, read_phases, write_phases


def test_the_text_reads_back() -> None:
    phases = ColdStartPhases(decide_s=0.0018, schedule_s=0.004, pull_s=0.0, load_s=12.5)
    assert write_phases(phases) == "decide=0.0018,schedule=0.004,pull=0,load=12.5"
    assert read_phases(write_phases(phases)) == phases
    assert list(known_phases(phases))[-1] == ("load", 12.5)


def test_nothing_known_is_an_empty_text() -> None:
    assert write_phases(ColdStartPhases()) == ""
    assert read_phases("") == ColdStartPhases()


@pytest.mark.parametrize("text", ["decided=1", "decide", "decide=", "decide=-1", "decide=nan", "decide=inf", "=1"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"phase|duration|convert"):
        read_phases(text)
