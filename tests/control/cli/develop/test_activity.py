"""The line of an activity: nothing without a terminal, and no text that could move the cursor."""

import pytest

from tidegate.control.cli.develop.activity import activity


def test_there_is_no_line_where_standard_error_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with activity("works") as shown:
        shown.show("works on")
        shown.above("a line of the server")
        assert not shown.is_shown
    assert capsys.readouterr() == ("", "")
