"""First predictions live: gathers samples and questions for the predictor, and keeps its latest answers.

A turn a second goes to the predictor, in the background: neither a round nor a request waits for it. While it is away,
the latest answers stand and the newest samples wait.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.autoscaler.measure.rates import WARM_REQUESTS
from tidegate.autoscaler.oltunes.prediction.analysis import rates_of
from tidegate.autoscaler.oltunes.prediction.predictor import SampleVerdict
from tidegate.autoscaler.oltunes.prediction.served import (
    MAX_MODELS,
    MAX_PENDING,
    FirstPrediction,
    ServedDevice,
    ServedWork,
)
from tidegate.control.predictor.graphs import graph_file, model_key
from tidegate.control.predictor.link import Predictor, PredictorAway, PredictorDown
from tidegate.control.predictor.messages import Question, Seen, Turn
from tidegate.control.state.notices import Faults
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.function import Function
from tidegate.records.profile_point import ProfilePoint
from tidegate.records.replica_sample import ReplicaSample

INSPECT_S: Final = 2.0
"""Longest time that a deploy waits for the predictor."""
MAX_QUESTIONS: Final = 1024
"""Configurations whose predictions are kept, those asked for last."""


class Predictions:
    """The predictions of one control process."""

    def __init__(self, predictor: Predictor, faults: Faults) -> None:
        self._predictor = predictor
        self._faults = faults
        self._tasks = TaskOwner("predictions")
        self._paths: OrderedDict[str, str] = OrderedDict()
        """Paths of graphs by model, the latest ones."""
        self._graphs: dict[str, str] = {}
        """Those that the predictor does not have yet."""
        self._seen: OrderedDict[tuple[str, str, int], Seen] = OrderedDict()
        """Samples that are not sent yet: the newest of each model and device with 0, and measured ones with their
        batch."""
        self._answers: OrderedDict[Question, FirstPrediction | None] = OrderedDict()
        """The latest answers, by question; None before the first one, and where there is nothing to go by."""
        self._is_asked = False
        """A question has no answer yet, or samples could not be kept: the next turn tries it again."""
        self._turn: asyncio.Task[None] | None = None
        self.verdicts: Counter[str] = Counter({verdict.value: 0 for verdict in SampleVerdict})
        """Samples so far by what became of them."""
        self._notes: OrderedDict[str, str] = OrderedDict()
        """By model: why its latest sample that was not believed was not."""

    def track(self, function: Function) -> None:
        """Notes a function whose graph is to be read. A message carries no path that is not UTF-8."""
        path, model = graph_file(function), model_key(function)
        if path is not None and _is_utf8(str(path)):
            self._graphs[model] = self._paths[model] = str(path)
            self._paths.move_to_end(model)
            while len(self._paths) > MAX_MODELS:
                self._paths.popitem(last=False)

    async def inspect(self, function: Function, accelerators: Iterable[Accelerator]) -> None:
        """Lets the function's graph be read and predicts it on these accelerators; waits ``INSPECT_S`` at most."""
        self.track(function)
        for each in accelerators:
            self.of(function, each)
        until = asyncio.get_running_loop().time() + INSPECT_S
        if self._turn is not None:
            _, late = await asyncio.wait([self._turn], timeout=INSPECT_S)
            if late:
                return
        left_s = max(0.0, until - asyncio.get_running_loop().time())
        await asyncio.wait([self._begin_turn()], timeout=left_s)

    def measured(
        self, function: Function, accelerator: Accelerator, before: ReplicaSample, sample: ReplicaSample
    ) -> None:
        """Takes two samples of a replica, a second apart. A cold replica, one that lost clients, and one whose requests
        failed show no speed."""
        if before.requests < WARM_REQUESTS or sample.failures > before.failures:
            return
        if sample.unanswered > before.unanswered:
            return
        work = ServedWork(
            requests=sample.requests - before.requests,
            inferences=sample.inferences - before.inferences,
            busy_s=sample.busy_s - before.busy_s,
            request_s=sample.in_flight_request_s - before.in_flight_request_s,
            execution_s=sample.execution_s - before.execution_s,
        )
        if work.requests:
            self._gather(_question(function, accelerator), work)

    def profiled(self, function: Function, accelerator: Accelerator, point: ProfilePoint) -> None:
        """Takes what `tidegate profile` has measured, as requests that were served one at a time."""
        busy_s = point.requests * point.execution_s
        work = ServedWork(
            requests=point.requests,
            inferences=point.requests * point.cell.batch,
            busy_s=busy_s,
            request_s=busy_s,
            execution_s=busy_s,
        )
        self._gather(_question(function, accelerator), work, point.cell.batch)

    def _gather(self, of: Question, work: ServedWork, batch: int = 0) -> None:
        self._seen[of.model, of.device.name, batch] = Seen(of=of, work=work)
        self._bound_seen()

    def _bound_seen(self) -> None:
        while len(self._seen) > MAX_PENDING:
            self._seen.popitem(last=False)

    def review(self) -> None:
        """Begins the next turn if the last one has ended; called once a second."""
        if self._graphs or self._seen or self._is_asked:
            self._begin_turn()

    def of(self, function: Function, accelerator: Accelerator) -> FirstPrediction | None:
        """Returns the latest predicted time of one inference; None if there is nothing to go by, or at the first time:
        the next turn answers."""
        question = _question(function, accelerator)
        self._is_asked = self._is_asked or question not in self._answers
        found = self._answers.setdefault(question)
        self._answers.move_to_end(question)
        while len(self._answers) > MAX_QUESTIONS:
            self._answers.popitem(last=False)
        return found

    def note(self, function: Function) -> str | None:
        """Returns why the latest sample of the function's model that was not believed was not; None if all were."""
        return self._notes.get(model_key(function))

    async def close(self) -> None:
        """Ends the predictor."""
        await self._tasks.close()
        await self._predictor.close()

    def _begin_turn(self) -> asyncio.Task[None]:
        if self._turn is None:
            self._turn = self._tasks.spawn(self._take_turn(), name="turn")
        return self._turn

    async def _take_turn(self) -> None:
        questions = tuple(self._answers)
        graphs, seen = self._graphs, self._seen
        turn = Turn(graphs=graphs, seen=tuple(seen.values()), questions=questions)
        self._graphs, self._seen, self._is_asked = {}, OrderedDict(), False
        try:
            answer = await self._predictor.ask(turn)
        except PredictorAway as error:
            self._faults.set("predictor", str(error))
            self._graphs, self._seen, self._is_asked = graphs | self._graphs, seen | self._seen, True
            self._bound_seen()
            return
        except PredictorDown as error:
            self._faults.set("predictor", str(error))
            # It begins again. What it had when it ended may be the reason, and is left out.
            self._graphs = {model: path for model, path in self._paths.items() if model not in turn.graphs}
            self._is_asked = True
            return
        finally:
            self._turn = None
        self._faults.note("predictor", answer.fault)
        self._is_asked = self._is_asked or answer.fault is not None
        for question, found in zip(questions, answer.predictions, strict=True):
            if question in self._answers:
                self._answers[question] = found
        self.verdicts.update(answer.verdicts)
        for model, note in answer.notes.items():
            self._notes[model] = note
            self._notes.move_to_end(model)
        while len(self._notes) > MAX_PENDING:
            self._notes.popitem(last=False)

    def __repr__(self) -> str:
        return f"<Predictions of {len(self._answers)} configurations, {len(self._seen)} samples to send>"


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _question(function: Function, accelerator: Accelerator) -> Question:
    return Question(model=model_key(function), device=_device(accelerator), share_pct=_share_pct(function))


def _device(accelerator: Accelerator) -> ServedDevice:
    rates = None if accelerator.is_emulated else rates_of(accelerator.name, cores=accelerator.processors)
    return ServedDevice(name=accelerator.name, memory_gb=accelerator.memory_bytes / 1e9, rates=rates)


def _share_pct(function: Function) -> float:
    return function.gpu.core_percentage if function.gpu.mps else 100.0
