"""Traces as people write them, and as they go wrong: every fault with its line."""

import gzip
import random
from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement
from tidegate.loadgen.traces.files import open_trace
from tidegate.loadgen.traces.formats import Format

LLM = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FUNCTIONS = "HashOwner,HashApp,HashFunction,Trigger," + ",".join(str(minute) for minute in range(1, 1441)) + "\n"


def faults_of(tmp_path: Path, text: str | bytes) -> list[str]:
    """The faults of a trace with this text."""
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInputError) as caught:
        open_trace(path)
    return [str(fault) for fault in caught.value.faults]


def test_counts(tmp_path: Path) -> None:
    path = tmp_path / "counts.txt.gz"
    path.write_bytes(gzip.compress(b"# from a log\n3\n0\n2\n\n"))
    trace = open_trace(path)
    assert (trace.summary.requests, trace.summary.duration_s, trace.summary.peak_per_s) == (5, 3.0, 3)
    times = [arrival.at_s for arrival in trace.arrivals(random.Random(1), Placement.EVEN)]
    assert times == pytest.approx([0.0, 1 / 3, 2 / 3, 2.0, 2.5])
    uniform = [arrival.at_s for arrival in trace.arrivals(random.Random(1), Placement.UNIFORM)]
    assert [int(at_s) for at_s in uniform] == [0, 0, 0, 2, 2]
    assert uniform == sorted(uniform)


def test_azure_llm(tmp_path: Path) -> None:
    path = tmp_path / "llm.csv"
    path.write_text(LLM + "2023-11-16 18:15:46.6805900,374,44\n2024-05-10 00:00:00.009930+00:00,7,1\n")
    first, second = open_trace(path).arrivals(random.Random(1))
    assert first == Arrival(0.0, 1, 374, 44)
    assert second.at_s == pytest.approx(176 * 86400 - 18 * 3600 - 15 * 60 - 46 + 0.00993 - 0.68059, abs=1e-5)


def test_azure_functions(tmp_path: Path) -> None:
    path = tmp_path / "functions.csv"
    rows = [
        ",".join(["o", "a", name, "http", *(["0"] * minute), "2", *(["0"] * (1439 - minute))])
        for minute, name in ((3, "f"), (1, "g"))
    ]
    path.write_text(FUNCTIONS + "\n".join(rows) + "\n")
    trace = open_trace(path)
    assert trace.summary.format is Format.AZURE_FUNCTIONS
    assert (trace.summary.requests, trace.summary.duration_s) == (4, 86400.0)
    seen = [
        (arrival.function, int(arrival.at_s // 60)) for arrival in trace.arrivals(random.Random(1), Placement.UNIFORM)
    ]
    assert seen == [("g", 1), ("g", 1), ("f", 3), ("f", 3)]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 0.5, "inferences": 4}\n\n{"at": 2, "function": "a\u2028b", "prompt_tokens": 9}\n')
    assert list(open_trace(path).arrivals(random.Random(1))) == [
        Arrival(0.5, 4),
        Arrival(2.0, 1, 9, 0, "a\u2028b"),
    ]


def test_a_factor_multiplies_requests_of_every_format(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 1}\n' * 1000)
    assert len(list(open_trace(path).arrivals(random.Random(1), factor=2.0))) == 2000
    half = len(list(open_trace(path).arrivals(random.Random(1), factor=0.5)))
    assert 420 < half < 580


def test_the_same_seed_gives_the_same_requests(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text("5\n9\n")
    trace = open_trace(path)
    assert list(trace.arrivals(random.Random(7))) == list(trace.arrivals(random.Random(7)))
    assert list(trace.arrivals(random.Random(7))) != list(trace.arrivals(random.Random(8)))


def test_wrong_counts_are_reported_all_at_once(tmp_path: Path) -> None:
    found = faults_of(tmp_path, "1\n-2\nx\n4\n\n5\n1.5\n99999999999\n")
    assert [line.split(":")[0] for line in found] == ["line 2", "line 3", "line 5", "line 7", "line 8"]
    assert "whole number" in found[0]
    assert "0 for a second without requests" in found[2]


def test_nothing_is_no_trace(tmp_path: Path) -> None:
    """Reported with the line where it ends."""
    seconds = "trace: got nothing; allowed: at least one second"
    assert faults_of(tmp_path, "") == [f"line 1: {seconds}"]
    assert faults_of(tmp_path, "# nothing\n\n") == [f"line 2: {seconds}"]
    assert faults_of(tmp_path, LLM) == ["line 1: trace: got no requests; allowed: at least one row"]
    assert faults_of(tmp_path, FUNCTIONS) == ["line 1: trace: got no functions; allowed: at least one row"]


def test_wrong_rows_are_reported_all_at_once(tmp_path: Path) -> None:
    text = (
        LLM + "2023-11-16 18:15:46.1,1,1\n2023-11-16 18:15:45.0,1,1\nyesterday,-1,x\n1,2\n\n2023-11-16 18:15:50.0,1,1\n"
    )
    found = faults_of(tmp_path, text)
    assert [line.split(":")[0] for line in found] == ["line 3", "line 4", "line 4", "line 4", "line 5", "line 6"]
    assert "1.100 s before the line above" in found[0]
    wrong = faults_of(tmp_path, FUNCTIONS + "o,a,f,http,1\n" + ",".join(["o", "a", "f", "http", *["-1"] * 1440]) + "\n")
    assert [line.split(":")[0] for line in wrong[:3]] == ["line 2", "line 3", "line 3"]
    assert faults_of(tmp_path, "TIMESTAMP,Tokens\n1,2\n")[0].startswith("line 1: head")


def test_wrong_objects_are_reported_all_at_once(tmp_path: Path) -> None:
    lines = [
        '{"at": 3}',
        '{"at": 1}',
        '{"at": -1, "inferences": 0, "promt_tokens": 1}',
        "[]",
        '{"at"',
        '{"inferences": 1}',
        '{"at": true}',
        '{"at": 4, "function": 3}',
    ]
    found = faults_of(tmp_path, "\n".join(lines))
    assert [line.split(":")[0] for line in found] == [f"line {number}" for number in (2, 3, 3, 3, 4, 5, 6, 7, 8)]
    assert any("did you mean `prompt_tokens`" in line for line in found)
    assert any("got nothing" in line for line in found)


def test_a_broken_archive_is_reported_with_the_line_where_it_breaks(tmp_path: Path) -> None:
    whole = gzip.compress("".join(f"{n % 90}\n" for n in range(50_000)).encode())
    (line,) = faults_of(tmp_path, whole[: len(whole) // 2])
    assert line.startswith("line ")
    assert "breaks off" in line
    assert "gzip" in faults_of(tmp_path, whole[:100] + b"\0" * 50 + whole[150:])[-1]
    assert faults_of(tmp_path, whole[:12])[0].startswith("line 1: file: got gzip that breaks off")


def test_what_is_no_text_or_no_file_is_reported(tmp_path: Path) -> None:
    assert faults_of(tmp_path, b"1\n\xff\xfe\n")[0].startswith("line 1: file: got bytes that are no text")
    assert "more than" in faults_of(tmp_path, "1" * 70_000)[0]
    with pytest.raises(InvalidInputError, match="No such file"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match="directory"):
        open_trace(tmp_path)


def test_a_file_that_changed_after_it_was_checked_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_text("1\n")
    trace = open_trace(path)
    path.write_text("-1\n")
    with pytest.raises(InvalidInputError, match="line 1"):
        list(trace.arrivals(random.Random(1)))
