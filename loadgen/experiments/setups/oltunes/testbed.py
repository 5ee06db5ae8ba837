"""The cluster of table 5, the models of tables 6 and 7, and their tasks as each scheduler sees them."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final

from tidegate.autoscaler.oltunes.autotune import TuningRecord
from tidegate.autoscaler.oltunes.character import COMPUTE_FROM, Bound
from tidegate.autoscaler.oltunes.objective import TuningRow, objective
from tidegate.autoscaler.oltunes.prediction.features import BATCHES, SHARES_PCT, Configuration
from tidegate.autoscaler.oltunes.prediction.predictor import Predictor
from tidegate.autoscaler.oltunes.scheduling.contract import WaitingTask
from tidegate.autoscaler.oltunes.task import BatchTask, Variant, job_class
from tidegate.loadgen.arrivals import shapes, workloads
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, joined
from tidegate.loadgen.experiments.setups.oltunes.dataset import (
    DEVICES,
    MODELS,
    DatasetDevice,
    DatasetModel,
    batch_time_s,
    generate,
)
from tidegate.loadgen.experiments.setups.oltunes.gpu import Gains
from tidegate.loadgen.experiments.tables import Count, NotNegative, Positive, Share, Some, Word
from tidegate.loadgen.metrics.power import IDLE_W, epc
from tidegate.loadgen.traces.files import open_trace

SIZE: Final = 640.0
"""Input size of every task: the one that OT-P's figures are for."""
ALPHA: Final = 1.0
LANGUAGE: Final = Path("sample:azure-llm")
CLASS_WEIGHTS: Final = (0.25, 0.75)
"""Of a throughput-oriented and of a latency-critical task: the middles of the paper's two ranges."""


class Pattern(StrEnum):
    """When tasks arrive."""

    UNIFORM = "uniform"
    """At equal distances, at the uniform rates of table 7."""
    POISSON = "poisson"
    MODELS = "models"
    """Poisson; the requests of the language trace for BERT and GPT-2."""
    TRACE = "trace"
    """Poisson, at rates that rise and fall with the language trace from second to second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGpu:
    name: Word
    """A device of OT-P."""
    count: Count
    tdp_w: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    name: Word
    """A model of OT-P."""
    of: Word
    """Its name in table 7; models of one name divide its rate."""
    size: Word
    """S, M, L, XL or XXL (table 6)."""
    variant: Variant
    ratio: Positive
    """Of compute-bound to memory-bound kernels (Eq. 1)."""
    items: Count
    """Inputs of a task."""
    slo_s: Positive
    critical: Share
    """Part of its tasks that are latency-critical."""

    @property
    def is_large(self) -> bool:
        return self.size in ("L", "XL", "XXL")

    @property
    def character(self) -> Bound:
        return Bound.MEMORY if self.ratio < COMPUTE_FROM else Bound.COMPUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord(TuningRecord):
    """A way to run a task with a share of the multiprocessors."""

    share_pct: float


GPUS: Final = (
    ClusterGpu(name="a100", count=5, tdp_w=250.0),
    ClusterGpu(name="a30", count=2, tdp_w=165.0),
    ClusterGpu(name="rtx4090", count=1, tdp_w=450.0),
)


def _model(
    name: str, of: str, size: str, variant: Variant, ratio: float, items: int, slo_s: float, critical: float
) -> ClusterModel:
    return ClusterModel(
        name=name, of=of, size=size, variant=variant, ratio=ratio, items=items, slo_s=slo_s, critical=critical
    )


TASKS: Final = (
    # name, in table 7, size, variant, ratio, inputs, SLO, latency-critical part
    _model("resnet18", "resnet18", "S", Variant.LOW, 3.0, 32, 0.010, 0.9),
    _model("yolov5n", "yolov5", "M", Variant.LOW, 9.0, 16, 0.025, 0.9),
    _model("yolov5x", "yolov5", "M", Variant.HIGH, 15.0, 8, 0.045, 0.9),
    _model("bert-medium", "bert-base", "L", Variant.LOW, 0.8, 16, 0.150, 0.1),
    _model("bert-base", "bert-base", "L", Variant.HIGH, 0.5, 16, 0.150, 0.1),
    _model("resnet50", "resnet50", "XL", Variant.LOW, 6.0, 16, 0.080, 0.9),
    _model("resnet152", "resnet50", "XL", Variant.HIGH, 12.0, 16, 0.170, 0.9),
    _model("gpt2", "gpt2", "XXL", Variant.HIGH, 0.2, 1, 0.200, 0.1),
)


@dataclass(frozen=True, kw_only=True)
class TaskTestbed:
    """The cluster, its models and what is known of them. SLOs and classes are printed; ratios, inputs of a task, the
    factor of the deadlines and the first window are our choice."""

    gpus: Some[ClusterGpu] = GPUS
    """In the order in which schedulers see them."""
    reserved: Some[Word] = ("a100",)
    """Kinds that reserve and pack keeps for large models."""
    models: Some[ClusterModel] = TASKS
    deadline_factor: Positive = 10.0
    """Deadline of a task over the SLO of its model."""
    compute_gain: Positive = 0.98
    memory_gain: Positive = 1.10
    mixed_gain: Positive = 1.46
    jitter: NotNegative = 0.05
    """Spread of execution times, as a standard deviation of their logarithms."""
    rows: Count = 1400
    """Samples that the predictor has learnt."""
    utilisation: Share = 0.5
    """Utilisation of the cluster by which the tuning objective weighs power (its beta)."""
    window_ms: Positive = 50.0
    """Batch window at the beginning."""

    def __post_init__(self) -> None:
        for known, given in ((DEVICES, self.gpus), (MODELS, self.models)):
            names = {each.name for each in known}
            if any(each.name not in names for each in given):
                raise ValueError(f"names of OT-P: {', '.join(sorted(names))}")
        if any(each.of not in workloads.OLTUNES for each in self.models):
            raise ValueError(f"models of table 7: {', '.join(workloads.OLTUNES)}")

    @property
    def gains(self) -> Gains:
        return Gains(compute=self.compute_gain, memory=self.memory_gain, mixed=self.mixed_gain)

    @cached_property
    def device(self) -> Mapping[str, DatasetDevice]:
        return {each.name: each for each in DEVICES}

    @cached_property
    def kinds(self) -> Mapping[str, ClusterGpu]:
        return {each.name: each for each in self.gpus}

    def arrivals(self, pattern: Pattern, duration_s: float, seed: int) -> Iterator[tuple[float, ClusterModel, bool]]:
        """Yields (time, model, whether latency-critical)."""
        rng = random.Random(f"{seed}/{pattern}")
        of: dict[str, list[ClusterModel]] = {}
        for each in self.models:
            of.setdefault(each.of, []).append(each)
        for arrival in self._requests(pattern, duration_s, rng):
            variants = of.get(arrival.function)
            if variants:
                model = rng.choice(variants)
                yield arrival.at_s, model, rng.random() < model.critical

    def _requests(self, pattern: Pattern, duration_s: float, rng: random.Random) -> Iterator[Arrival]:
        language = list(open_trace(LANGUAGE).arrivals(rng)) if pattern in (Pattern.MODELS, Pattern.TRACE) else None
        placement = Placement.EVEN if pattern is Pattern.UNIFORM else Placement.POISSON
        if language is None or pattern is Pattern.MODELS:
            return workloads.oltunes(duration_s, placement, rng, language)
        counts = Counter(int(each.at_s) for each in language)
        mean = len(language) / (int(language[-1].at_s) + 1)
        seconds = range(math.ceil(duration_s))
        return joined(
            *(
                _named(shapes.steps([(1.0, rates.poisson * counts[at] / mean) for at in seconds]), name, rng)
                for name, rates in workloads.OLTUNES.items()
            )
        )

    def need_gb(self, model: DatasetModel, batch: int) -> float:
        """Returns the memory that a batch needs, in even GB."""
        return 2.0 * math.ceil((model.base_gb + model.item_gb * batch) / 2.0)

    def alone_s(self, model: ClusterModel, kind: str, record: ShareRecord) -> float:
        """Returns the time of a task that runs alone."""
        batches = math.ceil(model.items / record.batch)
        of, batch = _dataset(model), min(model.items, record.batch)
        return batches * batch_time_s(of, self.device[kind], batch, record.share_pct, SIZE, record.memory_gb)


def _named(load: shapes.Load, name: str, rng: random.Random) -> Iterator[Arrival]:
    own = random.Random(rng.getrandbits(64))
    return (Arrival(at_s, function=name) for at_s in shapes.times(load, Placement.POISSON, own))


def _dataset(model: ClusterModel) -> DatasetModel:
    return next(each for each in MODELS if each.name == model.name)


@lru_cache(maxsize=8)
def _learnt(rows: int, seed: int) -> Predictor:
    """Returns a predictor that has learnt so many samples; it takes seconds."""
    known = Predictor(random.Random(seed))
    known.train(generate(random.Random(seed), rows))
    return known


class Profiles:
    """Tasks of each model and class, as a scheduler that tunes them sees them, or as they ask to be run."""

    def __init__(self, testbed: TaskTestbed, seed: int, *, is_tuned: bool) -> None:
        self._testbed = testbed
        self._known = _learnt(testbed.rows if is_tuned else 0, seed)
        self._of = {
            (model.name, is_critical): self._made(model, is_critical, is_tuned=is_tuned)
            for model in testbed.models
            for is_critical in (False, True)
        }

    def task(self, name: str, model: ClusterModel, at_s: float, *, is_critical: bool) -> WaitingTask:
        """Returns a task that arrives at ``at_s``."""
        made = self._of[model.name, is_critical]
        return replace(made, task=replace(made.task, id=name), due_s=at_s + self._testbed.deadline_factor * model.slo_s)

    def _made(self, model: ClusterModel, is_critical: bool, *, is_tuned: bool) -> WaitingTask:
        weight = CLASS_WEIGHTS[is_critical]
        records = self._tuned(model, weight) if is_tuned else self._asked(model)
        latencies = [each.latency_s for kept in records.values() for each in kept]
        return WaitingTask(
            task=BatchTask(
                id="",
                memory_gb=max(kept[0].memory_gb for kept in records.values()),
                ratio=model.ratio,
                variant=model.variant,
                devices=tuple(records),
            ),
            class_weight=weight,
            job_class=job_class(weight),
            due_s=0.0,
            average_latency_s=sum(latencies) / len(latencies),
            character=model.character,
            is_large=model.is_large,
            records=records,
        )

    def _asked(self, model: ClusterModel) -> dict[str, tuple[ShareRecord, ...]]:
        """Returns one way for each kind: all inputs in one batch, on the whole device."""
        batch = min(each for each in BATCHES if each >= min(model.items, BATCHES[-1]))
        memory_gb = self._testbed.need_gb(_dataset(model), batch)
        found: dict[str, tuple[ShareRecord, ...]] = {}
        for kind in self._testbed.kinds:
            record = ShareRecord(batch=batch, memory_gb=memory_gb, latency_s=0.0, throughput=0.0, share_pct=100.0)
            latency_s = self._testbed.alone_s(model, kind, record)
            found[kind] = (replace(record, latency_s=latency_s, throughput=model.items / latency_s),)
        return found

    def _tuned(self, model: ClusterModel, weight: float) -> dict[str, tuple[ShareRecord, ...]]:
        """Returns the best ways by the tuning objective: two kinds, three combinations each, by predicted times."""
        rows: list[TuningRow] = []
        ways: list[ShareRecord] = []
        of = _dataset(model)
        most = min(each for each in BATCHES if each >= min(model.items, BATCHES[-1]))
        for kind, gpu in self._testbed.kinds.items():
            memory = self._testbed.device[kind].memory_gb
            for batch in BATCHES:
                need_gb = self._testbed.need_gb(of, batch)
                if batch > most or need_gb > memory - 2:
                    continue
                for share_pct in SHARES_PCT:
                    latency_s = math.ceil(model.items / batch) * self._predicted_s(of, kind, batch, share_pct, need_gb)
                    power = epc(
                        p_base_w=IDLE_W,
                        tdp_w=gpu.tdp_w,
                        sm=share_pct / 100.0,
                        mem_used_gb=need_gb,
                        mem_total_gb=memory,
                        lat_s=latency_s,
                    )
                    throughput = model.items / latency_s
                    rows.append(
                        TuningRow(
                            device=kind,
                            combination=len(rows),
                            latency_s=latency_s,
                            throughput=throughput,
                            epc=power,
                        )
                    )
                    ways.append(
                        ShareRecord(
                            batch=batch,
                            memory_gb=need_gb,
                            latency_s=latency_s,
                            throughput=throughput,
                            share_pct=share_pct,
                        )
                    )
        found = objective(
            rows,
            class_weight=weight,
            alpha=ALPHA,
            beta=self._testbed.utilisation,
            deadline_s=self._testbed.deadline_factor * model.slo_s,
        )
        return {kind: tuple(ways[each] for each in kept) for kind, kept in found.combinations.items()}

    def _predicted_s(self, model: DatasetModel, kind: str, batch: int, share_pct: float, memory_gb: float) -> float:
        device = self._testbed.device[kind]
        return self._known.estimate(
            Configuration(
                model=model.name,
                device=kind,
                batch=batch,
                share_pct=share_pct,
                memory_gb=memory_gb,
                device_memory_gb=device.memory_gb,
                input_size=SIZE,
                parameters=model.parameters,
            )
        )[0]
