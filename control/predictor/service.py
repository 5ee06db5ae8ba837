"""PredictionService: takes turns one after the other, learns what they bring, and answers their questions.

The process of ``main.py`` runs it. It keeps the newest samples in a file, so that neither its own end nor that of the
control process loses them.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from tidegate.autoscaler.oltunes.prediction.predictor import Sample, SampleVerdict
from tidegate.autoscaler.oltunes.prediction.served import MAX_PENDING, FirstPredictions
from tidegate.control.predictor.graphs import figures_of_file
from tidegate.control.predictor.messages import Turn, TurnAnswer

SEED: Final = 1
"""Seed of the factors' start: the same samples give the same predictions."""
KEPT_SAMPLES: Final = 512
"""Samples that are learnt again at the start: 0.4 s of processor time."""


class SampleHistory:
    """The newest samples, in a file of a JSON line each. Lines that cannot be read are skipped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        self.fault: str | None = None
        """Why the last samples could not be kept; None if they were."""

    def load(self) -> list[Sample]:
        """Returns the kept samples, the oldest first; none if there is no file. What is not kept leaves the file."""
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[-KEPT_SAMPLES:]:
            try:
                found.append(msgspec.json.decode(line, type=Sample))
            except msgspec.DecodeError:
                continue
            self._lines.append(line)
        if len(lines) > len(self._lines):
            try:
                self._replace()
            except OSError as error:
                self._failed(error)
        return found

    def add(self, samples: list[Sample]) -> None:
        """Keeps samples, or notes why that failed. After a failure the whole file is written again."""
        fresh = [msgspec.json.encode(each) for each in samples]
        self._lines += fresh
        try:
            if self.fault is not None or len(self._lines) > 2 * KEPT_SAMPLES:
                del self._lines[:-KEPT_SAMPLES]
                self._replace()
            else:
                with self._path.open("ab") as file:
                    # A line that a crash cut short ends here.
                    file.write((b"\n" if file.tell() else b"") + b"\n".join(fresh))
        except OSError as error:
            self._failed(error)
        else:
            self.fault = None

    def _replace(self) -> None:
        spare = self._path.with_suffix(".new")
        spare.write_bytes(b"\n".join(self._lines))
        spare.replace(self._path)

    def _failed(self, error: OSError) -> None:
        self.fault = f"samples are not kept: {self._path}: {error.strerror}"


class PredictionService:
    """Predicts, and learns from everything that it is sent."""

    def __init__(self, history: SampleHistory | None = None) -> None:
        """``history``: None if samples are not kept."""
        self._core = FirstPredictions(random.Random(SEED))
        self._history = history
        if history is not None:
            self._core.remember(history.load())

    def take(self, turn: Turn) -> TurnAnswer:
        """Learns a turn's graphs and samples, then answers its questions."""
        for model, path in turn.graphs.items():
            figures = figures_of_file(Path(path))
            if figures is not None:
                self._core.know(model, figures)
        for seen in turn.seen:
            self._core.served(seen.of.model, seen.of.device, seen.of.share_pct, seen.work)
        judged = self._core.learn(MAX_PENDING)
        learnt = [sample for sample, verdict in judged if verdict is not SampleVerdict.REFUSED]
        if self._history is not None and (learnt or self._history.fault is not None):
            self._history.add(learnt)
        return TurnAnswer(
            predictions=tuple(self._core.predict(each.model, each.device, each.share_pct) for each in turn.questions),
            verdicts=dict(Counter(verdict.value for _, verdict in judged)),
            notes={sample.configuration.model: note for each in judged if (note := _note(sample := each[0], each[1]))},
            fault=None if self._history is None else self._history.fault,
        )

    def __repr__(self) -> str:
        return f"<PredictionService {self._core!r}>"


def _note(sample: Sample, verdict: SampleVerdict) -> str | None:
    """Returns why a sample was not believed; None if it was."""
    where = f"on {sample.configuration.device}"
    if verdict is SampleVerdict.REFUSED:
        return f"a sample {where} was refused: its time or its rate is no finite number above 0"
    if verdict is SampleVerdict.OUTLIER:
        return (
            f"a sample {where} of {sample.latency_s:.3g} s is ten times off what was predicted: its effect is bounded"
        )
    return None
