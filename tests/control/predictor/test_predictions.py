"""First predictions live: which samples count, and which files have a graph."""

import asyncio
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.autoscaler.oltunes.test_graph import model, node, value, weight
from tests.support.worlds.autoscaling import replica_sample
from tests.support.worlds.virtual_loop import run_virtual
from tidegate.autoscaler.profiles.admission import Kind, assess
from tidegate.control.api.describe import prediction_lines, sureness
from tidegate.control.predictor.graphs import figures_of_file, graph_file, model_key
from tidegate.control.predictor.link import PredictorAway, PredictorDown, PredictorHere
from tidegate.control.predictor.messages import Turn, TurnAnswer, packed
from tidegate.control.predictor.predictions import Predictions
from tidegate.control.predictor.service import SampleHistory
from tidegate.control.state.notices import Faults
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Room
from tidegate.function import Function, ModelFormat, Server, ServerKind
from tidegate.records.profile_point import ProfileCell, ProfilePoint
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
    found = figures_of_file(file)
    assert found is not None
    assert found.flops == 2 * 8 * 8 * 8
    broken, empty = tmp_path / "broken.onnx", tmp_path / "empty.onnx"
    broken.write_bytes(b"\xff" * 100)
    empty.write_bytes(b"")
    assert [figures_of_file(each) for each in (broken, empty, tmp_path / "none.onnx", tmp_path)] == [None] * 4
    other = replace(onnx(file), server=replace(onnx(file).server, format=ModelFormat.SKLEARN))
    handler = Function(name="h", server=Server(kind=ServerKind.HANDLER, target="/h.py:H"))
    assert (graph_file(other), graph_file(handler), graph_file(onnx(file))) == (None, None, file)


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


async def turn(predictions: Predictions) -> None:
    """Lets a second pass, and the turn that begins in it."""
    predictions.review()
    for _ in range(5):
        await asyncio.sleep(0)


async def learn(predictions: Predictions, of: Function, seconds: list[ReplicaSample]) -> None:
    for before, after in pairwise(seconds):
        predictions.measured(of, CPU, before, after)
        await turn(predictions)


def test_a_function_is_predicted_by_its_graph_and_then_by_what_was_served(file: Path) -> None:
    async def run() -> None:
        predictions, first, second = Predictions(PredictorHere(), Faults()), onnx(file, "a"), onnx(file, "b")
        assert predictions.of(first, CPU) is None
        predictions.track(first)
        await turn(predictions)
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


def test_a_measured_profile_of_one_model_corrects_what_is_predicted_of_another(file: Path) -> None:
    async def run() -> None:
        predictions = Predictions(PredictorHere(), Faults())
        measured, other = onnx(file), onnx(shutil.copyfile(file, file.with_name("b.onnx")))
        for each in (measured, other):
            await predictions.inspect(each, (CPU,))
        before = predictions.of(other, CPU)
        assert before is not None
        times = {"execution_s": 3.0 * before.one_s, "full_execution_s": 1.0, "p50_s": 1.0, "p95_s": 1.0, "p99_s": 1.0}
        for batch in (1, 2):
            cell = ProfileCell(accelerator=CPU.name, cores=0, batch=batch)
            point = ProfilePoint(cell=cell, slots=1, rate_ips=1.0, requests=200, **times)
            predictions.profiled(measured, CPU, point)
        await turn(predictions)
        assert predictions.verdicts["first"] == 2, "each batch is a sample"
        predictions.of(other, CPU)
        after = predictions.of(other, CPU)
        assert after is not None
        assert after.one_s > 1.5 * before.one_s

    asyncio.run(run())


@pytest.mark.parametrize("last", [{"failures": 1}, {"unanswered": 1}])
def test_seconds_with_failures_or_lost_clients_do_not_count(file: Path, last: dict[str, int]) -> None:
    async def run() -> None:
        predictions = Predictions(PredictorHere(), Faults())
        await learn(predictions, onnx(file), samples(3, 0.03, **last))
        assert sum(predictions.verdicts.values()) == 0

    asyncio.run(run())


def test_a_sample_that_is_not_believed_is_named(file: Path) -> None:
    async def run() -> None:
        predictions, of = Predictions(PredictorHere(), Faults()), onnx(file)
        await learn(predictions, of, samples(40, 0.03))
        assert predictions.note(of) is None
        last = samples(40, 0.03)[-1]
        slow = replace(last, requests=last.requests + 10, inferences=last.inferences + 10)
        slow = replace(slow, busy_s=slow.busy_s + 300, execution_s=slow.execution_s + 300)
        slow = replace(slow, in_flight_request_s=slow.in_flight_request_s + 300)
        await learn(predictions, of, [last, slow])
        assert predictions.note(of) == (
            "a sample on cpu of 30 s is ten times off what was predicted: its effect is bounded"
        )
        await learn(predictions, of, [slow, replace(slow, requests=slow.requests + 10, busy_s=math.nan)])
        assert predictions.note(of) == "a sample on cpu was refused: its time or its rate is no finite number above 0"
        assert (predictions.verdicts["outlier"], predictions.verdicts["refused"]) == (1, 1)

    asyncio.run(run())


class Fragile:
    """A predictor that is down when the test says so, and loses everything then."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.is_down = self.is_away = False
        self.inner = PredictorHere()

    async def ask(self, turn: Turn) -> TurnAnswer:
        self.turns.append(turn)
        if self.is_away:
            raise PredictorAway("it has ended")
        if self.is_down:
            self.inner = PredictorHere()
            raise PredictorDown("it has ended")
        return await self.inner.ask(turn)

    async def close(self) -> None:
        return None


def test_while_the_predictor_is_away_answers_stand_and_it_gets_all_graphs_but_the_last_again(file: Path) -> None:
    async def run() -> None:
        fragile, faults = Fragile(), Faults()
        predictions, of = Predictions(fragile, faults), onnx(file)
        other = onnx(file.with_name("other.onnx"))
        await predictions.inspect(of, [CPU])
        before = predictions.of(of, CPU)
        assert before is not None
        fragile.is_down = True
        await predictions.inspect(other, [CPU])
        assert faults.texts() == ("predictor: it has ended",)
        assert (predictions.of(of, CPU), predictions.of(other, CPU)) == (before, None)
        fragile.is_down = False
        await turn(predictions)
        assert fragile.turns[-1].graphs == {model_key(of): str(file)}
        assert (faults.texts(), predictions.of(of, CPU)) == ((), before)

    asyncio.run(run())


def test_a_turn_that_was_not_sent_is_kept_with_what_is_newer(file: Path) -> None:
    async def run() -> None:
        fragile = Fragile()
        predictions, of, other = Predictions(fragile, Faults()), onnx(file), onnx(file.with_name("other.onnx"))
        fragile.is_away = True
        predictions.track(of)
        await learn(predictions, of, samples(12, 0.03))
        await learn(predictions, of, [replace(each, requests=3 * each.requests) for each in samples(12, 0.03)][-2:])
        predictions.track(other)
        await turn(predictions)
        fragile.is_away = False
        await turn(predictions)
        sent = fragile.turns[-1]
        assert sent.graphs == {model_key(each): each.server.target for each in (of, other)}
        assert [each.work.requests for each in sent.seen] == [30]
        await turn(predictions)
        assert fragile.turns[-1] is sent, "nothing is sent twice"

    asyncio.run(run())


def test_samples_that_could_not_be_kept_are_tried_again_without_new_ones(file: Path) -> None:
    async def run() -> None:
        folder = file.parent / "gone"
        faults = Faults()
        predictions = Predictions(PredictorHere(SampleHistory(folder / "samples.jsonl")), faults)
        await learn(predictions, onnx(file), samples(12, 0.03))
        kept = [len(faults.texts())]
        folder.mkdir()
        await turn(predictions)
        assert [*kept, len(faults.texts())] == [1, 0]

    asyncio.run(run())


def test_a_path_that_is_not_utf_8_is_never_sent(tmp_path: Path) -> None:
    async def run() -> None:
        fragile = Fragile()
        predictions, of = Predictions(fragile, Faults()), onnx(tmp_path / "\udcff.onnx")
        await predictions.inspect(of, [CPU])
        (sent,) = fragile.turns
        assert (sent.graphs, len(sent.questions)) == ({}, 1)
        assert packed(sent)

    asyncio.run(run())


def test_a_deploy_does_not_wait_for_a_predictor_that_hangs(file: Path) -> None:
    class Hanging(Fragile):
        async def ask(self, turn: Turn) -> TurnAnswer:
            await asyncio.Event().wait()
            raise AssertionError

    async def run() -> None:
        predictions = Predictions(Hanging(), Faults())
        for _ in range(2):
            await predictions.inspect(onnx(file), [CPU])
        await predictions.close()

    run_virtual(run())


def test_a_turn_at_a_time_and_a_deploy_waits_for_its_own(file: Path) -> None:
    async def run() -> None:
        fragile = Fragile()
        predictions, of = Predictions(fragile, Faults()), onnx(file)
        predictions.track(of)
        predictions.review()
        predictions.review()
        await predictions.inspect(onnx(file, "b"), [CPU])
        assert predictions.of(of, CPU) is not None
        assert [len(each.questions) for each in fragile.turns] == [1, 1]

    asyncio.run(run())


def test_what_is_predicted_is_said_with_how_sure_it_is(file: Path) -> None:
    async def run() -> list[str]:
        predictions, of = Predictions(PredictorHere(), Faults()), onnx(file)
        await predictions.inspect(of, [CPU])
        kind = Kind(accelerator=CPU, room=Room(free=2, total=2), predicted=predictions.of(of, CPU))
        return prediction_lines(assess(of, [kind]))

    (line,) = asyncio.run(run())
    assert line.startswith("nothing is measured on cpu yet: one inference is predicted to take ")
    assert line.endswith("(within a factor of 3; from the operators of its graph alone)")
    assert [sureness(each) for each in (0.18, 1.0)] == ["within 18 %", "within a factor of 2"]
