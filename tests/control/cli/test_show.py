"""What ``status NAME`` says of a revision's last decision."""

from pathlib import Path

from rich.console import Console

from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.cli.show import function as shown
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
