"""``tidegate open``: when a browser is started, and when the link is printed."""

from collections.abc import Mapping

import pytest

from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.observe.console import has_display


@pytest.mark.parametrize(
    ("environ", "seen"),
    [({}, False), ({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "w"}, True), ({"DISPLAY": ""}, False)],
)
def test_a_browser_is_started_where_it_would_be_seen(environ: Mapping[str, str], seen: bool) -> None:
    assert has_display(environ) is seen


def test_without_a_deployment_it_says_so(tmp_path: object) -> None:
    done = tidegate("open", "--print", "--state", str(tmp_path))
    assert done.exit_code == 1
    assert "no control process runs" in done.stderr
