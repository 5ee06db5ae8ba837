"""First predictions live: which samples count, and which files have a graph."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.autoscaler.oltunes.test_graph import model, node, value, weight
from tests.support.worlds.autoscaling import replica_sample
from tidegate.autoscaler.profiles.admission import Kind, assess
from tidegate.control.api.describe import prediction_lines, sureness
from tidegate.control.watch.graphs import figures_of, model_key
from tidegate.control.watch.predictions import Predictions
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Room
from tidegate.function import Function, ModelFormat, Server, ServerKind
from tidegate.records.replica_sample import ReplicaSample

CPU = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=2, memory_bytes=8_000_000_000, cores=1)


def onnx(path: Path, name: str = "m") -> Function:
    return Function(name=name, server=Server(kind=ServerKind.MODEL, target=str(path)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(node("MatMul", "a b", "c"), inputs=[value("a", 1, 8, 8)], weights=[weight("b", 8, 8)]))
    return path


def test_an_onnx_file_has_figures_and_nothing_else_has(file: Path, tmp_path: Path) -> None:
    found = figures_of(onnx(file))
    assert found is not None
    assert found.flops == 2 * 8 * 8 * 8
    broken, empty = tmp_path / "broken.onnx", tmp_path / "empty.onnx"
    broken.write_bytes(b"\xff" * 100)
    empty.write_bytes(b"")
    assert [figures_of(onnx(each)) for each in (broken, empty, tmp_path / "none.onnx", tmp_path)] == [None] * 4
    other = replace(onnx(file), server=replace(onnx(file).server, format=ModelFormat.SKLEARN))
    handler = Function(name="h", server=Server(kind=ServerKind.HANDLER, target="/h.py:H"))
    assert (figures_of(other), figures_of(handler)) == (None, None)


def test_functions_with_one_file_share_their_samples(file: Path) -> None:
    assert model_key(onnx(file, "a")) == model_key(onnx(file, "b"))
    assert model_key(onnx(file)) != model_key(onnx(file.with_name("other.onnx")))


def samples(seconds: int, one_s: float, **last: Any) -> list[ReplicaSample]:
    """Ten requests a second, one at a time."""
    found = [
        replica_sample(
            "m-00001-0",
            sequence=second,
            requests=10 * second,
            inferences=10 * second,
            busy_s=10 * one_s * second,
            execution_s=10 * one_s * second,
            in_flight_request_s=10 * one_s * second,
        )
        for second in range(seconds)
    ]
    return [*found[:-1], replace(found[-1], **last)]


async def learn(predictions: Predictions, of: Function, seconds: list[ReplicaSample]) -> None:
    for before, after in pairwise(seconds):
        predictions.measured(of, CPU, before, after)
        await predictions.review()


def test_a_function_is_predicted_by_its_graph_and_then_by_what_was_served(file: Path) -> None:
    async def run() -> None:
        predictions, first, second = Predictions(), onnx(file, "a"), onnx(file, "b")
        assert predictions.of(first, CPU) is None
        predictions.track(first)
        await predictions.review()
        found = predictions.of(first, CPU)
        assert found is not None
        assert found.is_cold
        await learn(predictions, first, samples(40, 0.03))
        found = predictions.of(second, CPU)
        assert found is not None
        assert not found.is_cold
        assert found.one_s == pytest.approx(0.03, rel=0.1)
        assert predictions.verdicts["first"] == 20
        assert predictions.verdicts["learnt"] == 18, "the first ten requests of a replica do not count"

    asyncio.run(run())


@pytest.mark.parametrize("last", [{"failures": 1}, {"unanswered": 1}])
def test_seconds_with_failures_or_lost_clients_do_not_count(file: Path, last: dict[str, int]) -> None:
    async def run() -> None:
        predictions = Predictions()
        await learn(predictions, onnx(file), samples(3, 0.03, **last))
        assert sum(predictions.verdicts.values()) == 0

    asyncio.run(run())


def test_what_is_predicted_is_said_with_how_sure_it_is(file: Path) -> None:
    async def run() -> list[str]:
        predictions, of = Predictions(), onnx(file)
        await predictions.inspect(of)
        kind = Kind(accelerator=CPU, room=Room(free=2, total=2), predicted=predictions.of(of, CPU))
        return prediction_lines(assess(of, [kind]))

    (line,) = asyncio.run(run())
    assert line.startswith("nothing is measured on cpu yet: one inference is predicted to take ")
    assert line.endswith("(within a factor of 3; from the operators of its graph alone)")
    assert [sureness(each) for each in (0.18, 1.0)] == ["within 18 %", "within a factor of 2"]
