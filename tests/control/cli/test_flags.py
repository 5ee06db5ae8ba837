"""Flags from tables: their groups in the help, and switches that take no argument."""

import re
from typing import Any

import pytest

from tests.control.cli.test_commands import tidegate
from tidegate.control.cli.app import app
from tidegate.control.cli.load.command import GROUPS
from tidegate.manifest.annotations import ANNOTATIONS


def titles(command: str) -> list[str]:
    return re.findall(r"^(\S.*):$", tidegate(command, "--help").output, re.MULTILINE)


@pytest.mark.parametrize("command", ["deploy", "diff"])
def test_annotations_are_grouped_by_topic(command: str) -> None:
    assert titles(command) == ["Arguments", "Options", "Model server", *dict.fromkeys(row.topic for row in ANNOTATIONS)]


def test_diff_takes_every_option_of_deploy_that_says_what_is_deployed() -> None:
    import typer.main

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    names = {command: {each.name for each in commands[command].params} for command in ("deploy", "diff")}
    assert names["deploy"] - names["diff"] == {"no_wait", "is_replacement", "profile"}


def test_settings_are_grouped_by_section() -> None:
    assert {"Options", "Settings of [gateway]", "Settings of [limits]"} <= set(titles("up"))


def test_a_load_has_its_flags_in_groups_and_every_group_names_real_ones() -> None:
    import typer.main

    assert titles("load") == ["Arguments", "Options", *GROUPS]
    command = typer.main.get_command(app).commands["load"]  # type: ignore[attr-defined]  # a group
    names = {each.name for each in command.params}
    assert not {name for group in GROUPS.values() for name in group} - names


def test_commands_that_report_take_json() -> None:
    import typer.main

    commands: dict[str, Any] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group
    for name, group in [(name, each) for name, each in commands.items() if hasattr(each, "commands")]:
        del commands[name]
        commands |= {f"{name} {inner}": each for inner, each in group.commands.items()}
    without = {name for name, each in commands.items() if "json" not in {param.name for param in each.params}}
    assert without <= {"demo", "dev", "gateway", "init", "record"}, "these run, or write a file"


def test_no_switch_comes_in_a_pair() -> None:
    import typer.main

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    pairs = [(name, each.secondary_opts) for name, command in commands.items() for each in command.params]
    assert not [pair for pair in pairs if pair[1]]
