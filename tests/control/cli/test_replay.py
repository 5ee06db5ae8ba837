"""``tidegate replay``: offline, exit codes, the same bytes every time."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.cli.test_commands import tidegate
from tests.support.worlds.recorded import recording
from tidegate.control.cli.replay import save
from tidegate.errors import InvalidInputError, TidegateError

TRACE = "at,lambda_ips,mu_ips,latency_ms\n0,5,10,90\n1,30,10,400\n2,30,10,90\n"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "resnet.ndjson"
    path.write_text(recording("smif"))
    return path


def test_the_recorded_policy_comes_out_the_same(recorded: Path) -> None:
    first, second = tidegate("replay", str(recorded)), tidegate("replay", str(recorded))
    assert first.exit_code == 0, first.output
    assert "all 240 recorded decisions come out the same, bit for bit" in first.output
    assert first.output == second.output
    packed = recorded.with_suffix(".gz")
    packed.write_bytes(gzip.compress(recorded.read_bytes()))
    assert tidegate("replay", str(packed)).output == first.output


def test_a_difference_is_shown_and_ends_with_1(recorded: Path) -> None:
    rows = recorded.read_text().splitlines()
    step = json.loads(rows[40])
    step["decision"]["ready"] += 1
    rows[40] = json.dumps(step)
    recorded.write_text("\n".join(rows))
    done = tidegate("replay", str(recorded))
    assert done.exit_code == 1
    assert "line 41, " in done.output
    assert "ready differs: recorded " in done.output


def test_another_policy_is_shown_and_is_no_failure(recorded: Path) -> None:
    done = tidegate("replay", str(recorded), "--policy", "kpa", "--set", "policy.window=30s", "--set", "max-scale=2")
    assert done.exit_code == 0, done.output
    assert "recorded: policy smif; replayed: policy kpa (window 30s)" in done.output
    found = json.loads(tidegate("replay", str(recorded), "--policy", "kpa", "--json").output)
    assert (found["policy"], found["recorded"]["policy"], len(found["moments"])) == ("kpa", "smif", 240)


def test_a_csv_needs_no_deployment(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    done = tidegate("replay", str(path), "--set", "latency=200ms")
    assert done.exit_code == 0, done.output
    assert "policy tide" in done.output
    assert "SLA missed as observed: 1 s" in done.output


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        ("at,x\n0,1\n1\n", [], "line 3: row: got 1 cells"),
        ("{}\n", [], "line 1: format"),
        (
            TRACE,
            ["--policy", "tid"],
            "one of hetsev-greedy, hetsev-ilp, horizontal-only, hpa, k8s-baseline, kpa, oltunes",
        ),
        (TRACE, ["--policy", "tid", "--set", "policy.x=1", "--set", "foo"], "--set: got 'foo'; allowed: KEY=VALUE"),
        (TRACE, ["--set", "latency=fast"], "--set latency"),
        (TRACE, ["--policy", "kpa"], "concurrency: got no such column"),
        ("", [], "at: got no such column"),
    ],
)
def test_wrong_input_ends_with_2_and_says_what(text: str, arguments: list[str], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    done = tidegate("replay", str(path), *arguments)
    assert done.exit_code == 2
    assert expected in done.output


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert tidegate("replay", str(tmp_path / "none")).exit_code == 2
    binary = tmp_path / "binary"
    for data in (b"\xff\xfe\x00", b"\x1f\x8b garbage", b"\x1f\x8b"):
        binary.write_bytes(data)
        done = tidegate("replay", str(binary))
        assert done.exit_code == 2, data
        assert "Traceback" not in done.output


def test_a_recording_that_is_there_is_kept_where_nothing_comes(tmp_path: Path) -> None:
    """Such as for a name that was mistyped: the failure comes with the first piece."""
    output = tmp_path / "rec.jsonl"
    assert save(iter([b"1\n2\n", b"3\n"]), output) == 3

    def unknown() -> Iterator[bytes]:
        yield from failing()

    def failing() -> list[bytes]:
        raise TidegateError("no such function")

    with pytest.raises(TidegateError):
        save(unknown(), output)
    assert save(iter(()), output) == 0
    assert output.read_bytes() == b"1\n2\n3\n"


def test_a_recording_needs_a_file_that_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--output"):
        save(iter([b"1\n"]), tmp_path)
