"""``tidegate explain --log``: decisions in words, from a file."""

import json
from pathlib import Path

from tests.control.cli.test_commands import tidegate
from tidegate.records.codec import encode
from tidegate.records.decision import Decision, GroupDecision, Reason


def decision(at: float, desired: int) -> bytes:
    made = Decision(
        function="resnet",
        revision="resnet-00001",
        at=at,
        policy="kpa",
        ready=1,
        desired=desired,
        groups=(GroupDecision(accelerator="t4", replicas=desired),),
        reasons=(Reason(code="load", detail="3 requests at once"),),
    )
    return encode(made) + b"\n"


def test_the_last_decisions_are_reported_in_words_and_as_json(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"".join(decision(float(at), at) for at in range(1, 9)))
    done = tidegate("explain", "resnet", "--log", str(log), "--last", "2")
    assert done.exit_code == 0, done.output
    assert done.output.count("resnet-00001 kpa") == 2
    assert "7 replicas" in done.output and "8 replicas" in done.output
    assert "3 requests at once" in done.output
    found = json.loads(tidegate("explain", "resnet", "--log", str(log), "--last", "2", "--json").output)
    assert [each["desired"] for each in found] == [7, 8]


def test_every_line_that_is_no_decision_is_reported(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b"x\n" + decision(1.0, 1) + b'{"at": 1}\n')
    done = tidegate("explain", "resnet", "--log", str(log))
    assert done.exit_code == 2
    assert "line 1: line" in done.output and "line 3: line" in done.output


def test_another_function_and_no_file_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(decision(1.0, 1))
    done = tidegate("explain", "bert", "--log", str(log))
    assert done.exit_code == 2
    assert "a function that the log is about: resnet" in done.output
    assert tidegate("explain", "bert", "--log", str(tmp_path / "none")).exit_code == 2
