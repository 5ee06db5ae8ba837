"""First predictions: the time of one inference where a function has not run yet, learnt from what others were served.

A prediction comes from the first of these that has one:

1. the predictor, once the model and the device have enough samples: a model that runs on another device here;
2. the graph of the model, corrected by how much longer other models take here than their graphs say;
3. the graph alone.

Samples are gathered as they come, the newest of each configuration, and learnt a stated number at a time; a retraining
after a drift is spread in the same way.
"""

import math
import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Final

from tidegate.autoscaler.oltunes.prediction.analysis import DeviceRates, ModelFigures, first_time_s
from tidegate.autoscaler.oltunes.prediction.features import Configuration
from tidegate.autoscaler.oltunes.prediction.predictor import Predictor, Sample, SampleVerdict

ALONE: Final = 1.5
"""Mean requests in flight up to which a second shows the time of a request on an empty replica (our choice)."""
LEAST_REQUESTS: Final = 3
"""Requests of a second that make a sample."""
MAX_PENDING: Final = 256
"""Groups with a sample that is not learnt yet; each has its newest one."""
MAX_MODELS: Final = 256
"""Models whose graphs and corrections are kept, the latest used ones."""
GRAPH_ERROR: Final = 2.0
"""Relative error of a graph alone: within a factor of three (our choice)."""
CORRECTED_ERROR: Final = 1.0
"""The least relative error of a corrected graph while few models are known (our choice)."""
_NEWEST: Final = 0.1
"""Share of the newest sample in a model's correction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDevice:
    """A kind of device as predictions see it."""

    name: str
    memory_gb: float
    rates: DeviceRates | None
    """None if nothing is known of its speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWork:
    """The work of one replica in one second, of requests of about one size."""

    requests: float
    inferences: float
    busy_s: float
    request_s: float
    """Integral of requests in flight."""
    execution_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPrediction:
    """A predicted time, and how sure it is."""

    one_s: float
    """Time of one inference on an empty replica."""
    error: float
    """Relative error to expect: 0.2 is 20 %, 2 a factor of three."""
    basis: str
    """What it follows from, for people."""
    is_cold: bool
    """True if it does not come from samples of this model."""


class FirstPredictions:
    """Learns from served work and predicts functions that have not run."""

    def __init__(self, rng: random.Random) -> None:
        self._predictor = Predictor(rng)
        self._graphs: OrderedDict[str, ModelFigures] = OrderedDict()
        self._pending: OrderedDict[tuple[str, str, int], Sample] = OrderedDict()
        self._rates: dict[str, DeviceRates] = {}
        self._corrections: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Logarithm of measured over analytic time by (device, model)."""
        self._retraining: Iterator[None] | None = None

    def know(self, model: str, figures: ModelFigures) -> None:
        """Takes the figures of a model's graph."""
        self._graphs[model] = figures
        self._graphs.move_to_end(model)
        while len(self._graphs) > MAX_MODELS:
            self._graphs.popitem(last=False)

    def served(self, model: str, device: ServedDevice, share_pct: float, work: ServedWork) -> None:
        """Gathers a second of work; one with several requests at once, or with too few, is left out. One that is not
        finite is gathered and refused by name when it is its turn."""
        batch, latency_s, throughput = 1, math.nan, math.nan
        if all(map(math.isfinite, (work.requests, work.inferences, work.busy_s, work.request_s, work.execution_s))):
            if not (work.requests >= LEAST_REQUESTS and work.busy_s > 0.0 and work.request_s <= ALONE * work.busy_s):
                return
            batch = max(1, round(work.inferences / work.requests))
            latency_s, throughput = work.execution_s / work.requests, work.inferences / work.busy_s
        sample = Sample(
            configuration=self._configuration(model, device, share_pct, batch),
            latency_s=latency_s,
            throughput=throughput,
        )
        if device.rates is not None:
            self._rates[device.name] = device.rates
        key = (model, device.name, batch)
        self._pending[key] = sample
        while len(self._pending) > MAX_PENDING:
            self._pending.popitem(last=False)

    def remember(self, samples: Sequence[Sample]) -> None:
        """Learns the samples of an earlier life, the oldest first."""
        self._predictor.train(samples)

    def learn(self, steps: int) -> list[tuple[Sample, SampleVerdict]]:
        """Learns up to ``steps`` gathered samples, and takes as many steps of a retraining if one is due. Returns the
        samples with what became of them."""
        judged = []
        for _ in range(min(steps, len(self._pending))):
            _, sample = self._pending.popitem(last=False)
            verdict = self._predictor.observe(sample)
            judged.append((sample, verdict))
            if verdict in (SampleVerdict.DRIFT, SampleVerdict.OUTLIER) and self._retraining is None:
                self._retraining = self._predictor.retrain()
            if verdict not in (SampleVerdict.REFUSED, SampleVerdict.OUTLIER):
                self._correct(sample)
        for _ in range(steps):
            if self._retraining is not None and next(self._retraining, _END) is _END:
                self._retraining = None
        return judged

    def predict(self, model: str, device: ServedDevice, share_pct: float) -> FirstPrediction | None:
        """Returns the predicted time of one inference; None if nothing is known to go by."""
        found = self._predictor.predict(self._configuration(model, device, share_pct, 1))
        if found is not None:
            of = f"{found.samples} samples of it here" if found.samples else "its samples on other accelerators"
            return FirstPrediction(one_s=found.latency_s, error=found.error, basis=of, is_cold=not found.samples)
        graph = self._graphs.get(model)
        if graph is None or device.rates is None:
            return None
        analytic_s = first_time_s(graph, device.rates)
        others = [value for (name, other), value in self._corrections.items() if name == device.name and other != model]
        if not others:
            return FirstPrediction(
                one_s=analytic_s, error=GRAPH_ERROR, basis="the operators of its graph alone", is_cold=True
            )
        spread = math.expm1(2.0 * pstdev(others)) if len(others) > 2 else CORRECTED_ERROR
        count = "another model" if len(others) == 1 else f"{len(others)} other models"
        return FirstPrediction(
            one_s=analytic_s * math.exp(fmean(others)),
            error=max(spread, 0.25),
            basis=f"the operators of its graph, and what {count} took here",
            is_cold=True,
        )

    def _configuration(self, model: str, device: ServedDevice, share_pct: float, batch: int) -> Configuration:
        graph = self._graphs.get(model)
        return Configuration(
            model=model,
            device=device.name,
            batch=batch,
            share_pct=share_pct,
            memory_gb=0.0,
            device_memory_gb=2.0 * round(device.memory_gb / 2.0),
            input_size=0.0 if graph is None else graph.input_size,
            parameters=0.0 if graph is None else graph.parameters,
        )

    def _correct(self, sample: Sample) -> None:
        of = sample.configuration
        graph, rates = self._graphs.get(of.model), self._rates.get(of.device)
        if graph is None or rates is None:
            return
        analytic_s = first_time_s(graph, rates, of.batch) * 100.0 / of.share_pct
        if analytic_s <= 0.0:
            return
        key = (of.device, of.model)
        value = math.log(sample.latency_s / analytic_s)
        before = self._corrections.get(key, value)
        self._corrections[key] = before + _NEWEST * (value - before)
        self._corrections.move_to_end(key)
        while len(self._corrections) > MAX_MODELS:
            self._corrections.popitem(last=False)

    def __repr__(self) -> str:
        return f"<FirstPredictions {self._predictor}, {len(self._graphs)} graphs, {len(self._pending)} pending>"


_END: Final = object()
