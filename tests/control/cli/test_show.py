"""What ``status NAME`` says of a revision's last decision, and ``list`` below its table."""

import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tests.control.api.test_summary import VIEW
from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.cli.show import deployment, notes
from tidegate.control.cli.show import function as shown
from tidegate.control.views.deployment import DeploymentView, GatewayView
from tidegate.control.views.functions import FunctionState
from tidegate.function import Scaling


def text(world: ControlWorld) -> str:
    out = Console(width=400, no_color=True)
    with out.capture() as captured:
        out.print(shown(world.view()))
    return captured.get()


def test_what_a_dry_run_carries_out_nevertheless_is_not_said_to_be_left(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1, dry_run=True)))
        assert "wanted 1 (dry_run_start" in text(world)
        await world.advance(3.0)
        assert "wanted 1, dry run: not carried out (" in text(world)

    in_world(tmp_path, tell)


def test_the_list_says_why_a_start_failed_in_one_line() -> None:
    failed = (
        "the model server exited with status 3\nlast output of the model server:\n  Traceback\n  OSError: no weights"
    )
    view = replace(VIEW, state=FunctionState.FAILED, message=failed)
    assert [str(line) for line in notes([view, VIEW])] == [
        "echo: the model server exited with status 3: OSError: no weights"
    ]


def test_an_idle_revision_has_its_time_until_zero_and_one_that_sleeps_its_time_since(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(scale_to_zero_after_s=20.0)))
        await world.advance(8.0)
        (revision,) = world.view().revisions
        assert revision.idle is not None
        assert revision.idle.is_unused
        assert revision.idle.zero_in_s is not None
        assert 10.0 < revision.idle.zero_in_s < 20.0
        assert revision.asleep_s is None
        await world.advance(40.0)
        (revision,) = world.view().revisions
        assert revision.idle is None
        assert revision.asleep_s is not None
        assert 10.0 < revision.asleep_s < 40.0

    in_world(tmp_path, tell)


def test_what_is_not_known_of_a_worker_is_a_dash_and_a_function_has_the_url_that_it_has() -> None:
    worker = GatewayView(worker="g0", pid=7, state="starting", restarts=1, table=None, connections=None)
    view = DeploymentView(
        version="1", pid=1, epoch=1, since_s=1.0, state_directory="/s", api="a", gateway="g", table="1.1", faults=(),
        gateways=(worker,), accelerators=(), functions=(),
    )  # fmt: skip
    out = Console(width=200, no_color=True)
    with out.capture() as captured:
        out.print(deployment(view))
        out.print(shown(replace(VIEW, url="http://echo.localhost/", path_url=None)))
    text = captured.get()
    assert "None" not in text
    assert re.search(r"^g0 +starting +7 +1 +- +-", text, re.MULTILINE)
    assert "\nhttp://echo.localhost/   models" in text
