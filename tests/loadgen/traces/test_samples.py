"""The traces that ship: whole, small, and what their README says of them."""

import random
from pathlib import Path

import pytest

from tests.support.worlds.synthetic_traces import bursts
from tidegate.errors import InvalidInputError
from tidegate.loadgen.traces import files
from tidegate.loadgen.traces.files import SAMPLES, open_trace
from tidegate.loadgen.traces.formats import Format

FOLDER = Path(files.__file__).parent / "samples"


def test_every_sample_is_there_small_and_described() -> None:
    shipped = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert shipped == set(SAMPLES.values())
    assert all(path.stat().st_size < 100_000 for path in FOLDER.iterdir())
    text = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in text for name in SAMPLES)


def test_the_synthetic_one_can_be_made_anew() -> None:
    trace = open_trace(Path("sample:bursts"))
    assert (trace.summary.format, trace.summary.duration_s) == (Format.COUNTS, 14_400.0)
    made = list(bursts(14_400, random.Random(3)))
    assert trace.summary.requests == sum(made)
    assert trace.summary.peak_per_s == max(made)


def test_a_burst_is_a_multiple_of_what_was_before_within_seconds() -> None:
    counts = list(bursts(14_400, random.Random(3)))
    means = [sum(counts[at : at + 10]) / 10 for at in range(0, len(counts), 10)]
    assert max(later / before for before, later in zip(means, means[2:], strict=False)) > 1.8
    assert 40.0 < sorted(means)[len(means) // 2] < 70.0


def test_the_requests_of_a_chat_service_have_tokens() -> None:
    trace = open_trace(Path("sample:azure-llm"))
    assert (trace.summary.format, trace.summary.requests) == (Format.AZURE_LLM, 5_000)
    first = next(trace.arrivals(random.Random(1)))
    assert (first.prompt_tokens, first.completion_tokens) == (374, 44)


def test_an_unknown_sample_is_reported_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInputError, match="azure-llm, bursts, twitter") as caught:
        open_trace(Path("sample:burst"))
    assert "did you mean `bursts`" in str(caught.value)
