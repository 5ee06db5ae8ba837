"""The names of functions for a shell, and what is left to typer."""

import subprocess
import sys

import pytest

from tidegate.control.cli.completion.names import BY_NAME, answer
from tidegate.control.cli.show import complete_function


def bash(*words: str) -> dict[str, str]:
    return {
        "_TIDEGATE_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(("tidegate", *words)),
        "COMP_CWORD": str(len(words)),
        "HOME": "/nowhere",
    }


@pytest.mark.parametrize(
    "environ",
    [
        bash("ex"),
        bash("deploy", "ha"),
        bash("explain", "--la"),
        bash("series", "--metric", "la"),
        bash("explain", "ha"),
        {"_TIDEGATE_COMPLETE": "complete_bash"},
        {"_TIDEGATE_COMPLETE": "complete_powershell", "_TYPER_COMPLETE_ARGS": "tidegate explain "},
        {"_TIDEGATE_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "tidegate explain 'x"},
    ],
)
def test_commands_options_their_values_and_a_deployment_that_is_not_there_are_left_to_typer(
    environ: dict[str, str],
) -> None:
    assert answer(environ) is None


def test_the_functions_of_a_context_are_not_those_of_this_machine() -> None:
    assert answer(bash("explain", "--context", "here", "ha")) == ""


def test_no_deployment_gives_no_names_and_no_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGATE_STATE", "/nowhere")
    assert complete_function("ha") == []
    assert capsys.readouterr() == ("", "")


def test_the_program_answers_a_completion_without_importing_the_commands() -> None:
    code = "import sys, tidegate.control.cli.main; print([n for n in ('typer', 'httpx', 'yaml') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_with_a_function_is_a_command() -> None:
    from tidegate.control.cli.app import app

    assert {each.name for each in app.registered_commands} >= BY_NAME
