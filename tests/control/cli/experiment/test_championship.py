"""``tidegate experiment championship``: input, what is printed, exit codes."""

import json
from pathlib import Path

from typer.testing import CliRunner

from tidegate.control.cli.app import app

SHORT = ("--learn", "0s", "--for", "60s", "--groups", "1", "--start-up", "5")


def tidegate(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(app, ["experiment", "championship", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_every_fault_is_reported_at_once(tmp_path: Path) -> None:
    code, _, stderr = tidegate(
        *("--policies", "tid", "--traces", "twitter,spiky", "--groups", "2", "--start-up", "0,x", "--seeds", "0"),
        *("--jobs", "many", "--data", str(tmp_path), "--set", "policy.nothing=1", "--html", "/nowhere/at/all.html"),
    )
    assert code == 2
    for words in (
        "--policies: got 'tid'; did you mean `tide`? allowed: hetsev-greedy, hetsev-ilp, horizontal-only, hpa, "
        "k8s-baseline, kpa, oltunes, orion, reserve-and-pack, smif, themis, tide, vertical-only",
        "--traces: got 'spiky'; did you mean `spike`? allowed: twitter, azure-llm, constant, diurnal, batches, spike",
        "--traces twitter: got no such file in",
        "--groups: got '2'; allowed: 1 or 3",
        "--start-up: got '0'; allowed: seconds, 1 to 3600",
        "--start-up: got 'x'",
        "--seeds: got '0'",
        "--jobs: got 'many'",
        "--html: got '/nowhere/at/all.html'",
    ):
        assert words in stderr, stderr


def test_a_setting_that_no_policy_has_is_a_fault() -> None:
    code, _, stderr = tidegate("--policies", "tide,kpa", "--traces", "constant", "--set", "policy.nothing=1")
    assert code == 2
    assert "policy.nothing" in stderr


def test_rows_are_lines_of_json(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, stdout, _ = tidegate(
        "--policies", "tide,kpa", "--traces", "constant,diurnal", *SHORT, "--json", "--html", str(page)
    )
    assert code == 0
    rows = [json.loads(line) for line in stdout.splitlines()]
    assert [(row["trace"], row["policy"]) for row in rows] == [
        ("constant", "tide"),
        ("constant", "kpa"),
        ("diurnal", "tide"),
        ("diurnal", "kpa"),
    ]
    assert rows[0]["cost_over_b0"] > 1.0
    assert "<svg" in page.read_text(encoding="utf-8")


def test_traces_without_their_file_are_left_out_and_said() -> None:
    code, stdout, beside = tidegate("--policies", "kpa", "--learn", "0s", "--for", "60s", "--no-bound", *SHORT[4:])
    assert code == 0
    assert "left out: twitter, which needs --data FOLDER with twitter*.txt or twitter*.txt.gz" in beside
    lines = stdout.splitlines()
    assert lines[0].split()[:4] == ["trace", "groups", "start-up", "seed"]
    assert [line.split()[0] for line in lines[1:]] == [
        "constant",
        "diurnal",
        "batches",
        "spike",
        "bursts",
        "mmpp",
        "on-off",
    ]
