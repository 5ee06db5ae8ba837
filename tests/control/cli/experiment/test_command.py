"""``tidegate experiment``: input, what is printed, exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.control.cli.test_commands import tidegate
from tests.loadgen.experiments.small import TEXT
from tidegate.loadgen.experiments import definition

FULL = Path("/dev/full")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_list_has_every_experiment() -> None:
    result = tidegate("experiment", "--list")
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.output.splitlines()]
    assert {f"th{number}" for number in range(1, 11)} <= set(names)
    listed = json.loads(tidegate("experiment", "--list", "--json").output)
    assert [each["name"] for each in listed] == names
    assert all(each["title"] and each["source"] and each["claim"] for each in listed)
    # Those that take longest, or draw nothing, have fewer seeds than five.
    few = {"hs4", "hs6", *(f"tm{number}" for number in (*range(1, 11), 14))}
    few |= {f"ot{number}" for number in (*range(3, 8), *range(9, 13), 14)}
    assert {each["name"] for each in listed if each["seeds"] != 5} == few


def test_every_fault_is_reported_at_once(own: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text(TEXT.replace("devices = 2", "devices = 0"), encoding="utf-8")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff")
    paths = [str(own), str(own), str(bad), str(binary), str(tmp_path)]
    result = tidegate(
        *("experiment", "th11", "--seeds", "0", "--jobs", "many"), *(f"--definition={path}" for path in paths)
    )
    assert result.exit_code == 2
    for says in (
        "NAME: got 'th11'; did you mean `th1`? allowed: all, ",
        "--seeds: got '0'; allowed: a whole number, 1 to 1000",
        "--jobs: got 'many'; allowed: a whole number, 1 to ",
        f"{bad}: parameters.cluster.devices: got 0; allowed: a whole number >= 1",
        f"--definition {binary}: got byte 0 is no UTF-8",
        f"--definition {tmp_path}: got Is a directory",
        "name: got 'small'; allowed: each name once",
    ):
        assert says in result.output


def test_nothing_named_is_wrong_input() -> None:
    result = tidegate("experiment")
    assert result.exit_code == 2
    assert "NAME: got nothing" in result.output


def test_a_report_that_cannot_be_written_is_reported_before_anything_runs(own: Path) -> None:
    result = tidegate("experiment", "--definition", str(own), "--report", "/nowhere/at/all.html")
    assert result.exit_code == 2
    assert "--report: got '/nowhere/at/all.html'; allowed: a file in a folder that exists" in result.output
    assert "kpa_total_s" not in result.output


def test_a_report_is_not_written_over_the_definition_and_that_is_reported_with_the_other_faults(own: Path) -> None:
    result = tidegate("experiment", "--definition", str(own), "--report", str(own), "--seeds", "0")
    assert result.exit_code == 2
    assert "--report: got " in result.output
    assert "--seeds: got '0'" in result.output
    assert own.read_text(encoding="utf-8") == TEXT


def test_ones_own_experiment_runs_and_is_written(own: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = tidegate("experiment", "--definition", str(own), "--report", str(page))
    assert result.exit_code == 0, result.output
    assert "small: A small one (Nowhere, table 1; 2 seeds)" in result.output
    assert "2 of 2 checks of 1 experiment hold" in result.output
    assert "2 of 2 checks of 1 experiment hold" in page.read_text(encoding="utf-8")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is Linux's")
def test_a_full_disk_is_reported_with_the_files_name(own: Path) -> None:
    result = tidegate("experiment", "--definition", str(own), "--report", str(FULL))
    assert result.exit_code == 1
    assert "error: /dev/full: No space left on device" in result.output
    assert "checks of 1 experiment hold" in result.output


def test_a_check_that_does_not_hold_is_exit_code_1(own: Path) -> None:
    own.write_text(TEXT.replace("at_most = 3.0", "at_most = 1.01"), encoding="utf-8")
    result = tidegate("experiment", "--definition", str(own), "--seeds", "1", "--json")
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert [check["verdict"] for check in found["checks"]] == ["fails", "holds"]
    assert found["seeds"] == [1] and found["holds"] is False


def test_a_check_of_an_unknown_figure_is_wrong_input(own: Path) -> None:
    own.write_text(TEXT.replace('"hpa_mean_s"', '"hpa_median_s"'), encoding="utf-8")
    result = tidegate("experiment", "--definition", str(own))
    assert result.exit_code == 2
    assert "checks[1].figure: got hpa_median_s; allowed: kpa_total_s" in result.output


def test_markdown_is_a_section_of_a_page(own: Path) -> None:
    result = tidegate("experiment", "--definition", str(own), "--seeds", "1", "--markdown")
    assert result.stdout.startswith("### small: A small one\n")
    assert "| hpa_mean_s |  | 50 % off at most of 0.1, each seed | 0.1" in result.stdout


def test_output_is_the_same_under_other_hash_seeds(own: Path, tmp_path: Path) -> None:
    outputs = []
    for hash_seed in ("1", "2"):
        page = tmp_path / f"{hash_seed}.html"
        command = [sys.executable, "-m", "tidegate.control.cli", "experiment", "--definition", str(own), "--json"]
        done = subprocess.run(
            [*command, "--report", str(page)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            cwd=Path(__file__).resolve().parents[4],
        )
        outputs.append((done.stdout, page.read_bytes()))
    assert outputs[0] == outputs[1]


SHIPPED = Path(definition.__file__).parent / "catalogue"


@pytest.mark.parametrize(
    ("name", "line", "instead", "says"),
    [
        ("sm1", "batches = [1, 16, 64, 128]", "batches = []", "parameters.batches: got an empty list"),
        ("sm2", "window_s = 60.0", "window_s = 600.0", "allowed: a window_s of at most duration_s"),
        ("sm4", "callers = [2, 8, 64]", "callers = []", "parameters.callers: got an empty list"),
        ("sm7", "resnet50 = 0.05, ", "", "allowed: seconds of each model on each device"),
        (
            "sm6",
            "mobilenet = 0.004",
            "mobilenet = inf",
            "parameters.service_s.mobilenet: got inf; allowed: a finite number",
        ),
        ("sm7", 'k40"', 'k40"\ncolour = 1', "parameters.devices[0].colour: got an unknown key"),
        ("sm7", "resnet50 = 0.05", "resnet50 = 0", "devices[0].seconds.resnet50: got 0; allowed: a number > 0"),
        ("sm7", "settled_s = 60.0", "settled_s = 600.0", "allowed: settled_s of at most duration_s"),
        ("sm8", "sizes = [2, 3, 4, 5, 6, 7, 8]", "sizes = []", "parameters.sizes: got an empty list"),
        ("sm8", "window_s = 60.0", "window_s = 0.5", "allowed: a window_s from 1 to duration_s"),
    ],
)
def test_parameters_that_leave_nothing_to_run_are_faults(
    name: str, line: str, instead: str, says: str, tmp_path: Path
) -> None:
    text = (SHIPPED / f"{name}.toml").read_text(encoding="utf-8")
    assert line in text
    path = tmp_path / "own.toml"
    path.write_text(text.replace(line, instead), encoding="utf-8")
    result = tidegate("experiment", "--definition", str(path))
    assert result.exit_code == 2, result.output
    assert says in result.output


def test_a_run_in_which_nothing_happens_is_reported_in_words(tmp_path: Path) -> None:
    text = (SHIPPED / "sm1.toml").read_text(encoding="utf-8").replace("window_s = 15.0", "window_s = 0.001")
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    result = tidegate("experiment", "--definition", str(path))
    assert result.exit_code == 1
    assert "sm1, seed 1: nothing can be measured with these parameters" in result.output
