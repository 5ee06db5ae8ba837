"""The table of annotations under ``tidegate.dev/``: the SLA, SMIF's job annotations and what steers scaling.

Every row is also a flag of ``tidegate deploy`` (``latency`` -> ``--latency``) and a line of docs/use/annotations.md. A
key may be written in camelCase too; SMIF's ``initialDesiredScale`` is an alias. A policy's parameters are written as
``tidegate.dev/policy.NAME``; the KPA's have Knative's names and bounds (:data:`KPA_PARAMETERS`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tidegate.function import ConcurrencyUnit, Quantization, TaskClass
from tidegate.manifest.policy_parameters import HPA_PARAMETERS, SMIF_PARAMETERS
from tidegate.manifest.routing import ROUTING
from tidegate.records.cold_rules import ColdCalls
from tidegate.schema import time_windows as schedule
from tidegate.schema import units
from tidegate.schema.rows import (
    NAME,
    Checked,
    Choice,
    Duration,
    Gigabytes,
    Number,
    Percent,
    Row,
    Steps,
    Text,
    Whole,
    WholeSeconds,
    WordOr,
    YesNo,
    by_spelling,
)

PREFIX: Final = "tidegate.dev/"
PARAMETER_PREFIX: Final = "policy."
INT32: Final = 2**31 - 1

CONCURRENCY: Final = WordOr("auto", Whole(0, 100_000))
TIMEOUT: Final = Duration(0.001, 86_400)
MOUNTS: Final = Text(r"[ -~]{0,253}", "at most 253 printable ASCII characters")
POLICY_NAME: Final = Text(NAME, "the name of a policy")

_SLA, _SCALING, _BATCH, _WORK, _GPU = "SLA", "Scaling", "Batches", "Requests", "Model and GPU (SMIF)"
_COLD, _ROLLOUT = "Cold starts", "Rollout"

COLD: Final[tuple[Row, ...]] = (
    Row(
        key="heartbeat",
        topic=_COLD,
        kind=WordOr("off", Duration(0.5, 600)),
        default="off",
        lands="cold.heartbeat_s",
        sentence="How often an event stream that waits for a cold start gets a comment; the first one opens it.",
    ),
    Row(
        key="cold-calls",
        topic=_COLD,
        kind=Choice(ColdCalls),
        default="wait",
        lands="cold.calls",
        sentence="Whether other calls wait for a cold start, or are answered 202 and sent again by the client.",
    ),
)

ROLLOUT: Final[tuple[Row, ...]] = (
    Row(
        key="rollout-duration",
        topic=_ROLLOUT,
        kind=WholeSeconds(Duration(0, 7 * 86_400)),
        default="0s",
        lands="rollout.duration_s",
        sentence="Time over which a new revision gets all traffic, step by step, without a judgement; 0s: at once.",
    ),
    Row(
        key="canary-steps",
        topic=_ROLLOUT,
        kind=Steps(),
        default="none",
        lands="rollout.canary_steps",
        sentence="Percent of the traffic that a new revision gets step by step while errors and SLA misses allow it.",
    ),
    Row(
        key="canary-window",
        topic=_ROLLOUT,
        kind=Duration(1, 86_400),
        default="30s",
        lands="rollout.canary_window_s",
        sentence="Shortest time at each step of a canary.",
    ),
    Row(
        key="shadow-percent",
        topic=_ROLLOUT,
        kind=Percent(0, 100),
        default="0",
        lands="rollout.shadow_percent",
        sentence="Share of the requests of which a new revision gets a copy; it serves nobody until it is promoted.",
    ),
)

ANNOTATIONS: Final[tuple[Row, ...]] = (
    Row(
        key="latency",
        topic=_SLA,
        kind=WordOr("none", Duration(0.001, 3600, bare="ms")),
        default="none",
        lands="sla.latency_s",
        sentence="Target for the latency at the gateway, cold starts included; it ends no request.",
    ),
    Row(
        key="percentile",
        topic=_SLA,
        kind=Percent(1, 99.999),
        default="98",
        lands="sla.percentile",
        sentence="Share of requests that must meet the latency target.",
    ),
    Row(
        key="target-ips",
        topic=_SLA,
        kind=WordOr("none", Number(0, 1e9, "inferences/s", above=True)),
        default="none",
        lands="sla.target_ips",
        sentence="Rate to provide for as long as there is traffic, whatever the measured load.",
    ),
    Row(
        key="target-tps",
        topic=_SLA,
        kind=WordOr("none", Number(0, 1e12, "tokens/s", above=True)),
        default="none",
        lands="sla.target_tps",
        sentence="The same in tokens, of prompts and answers together, for functions that speak OpenAI's protocol.",
    ),
    Row(
        key="drop-after",
        topic=_SLA,
        kind=WordOr("none", Number(1, 1000, "times the latency target")),
        default="none",
        lands="sla.drop_after",
        sentence="Drops a request that has waited this many times the latency target; needs a latency.",
    ),
    Row(
        key="policy",
        topic=_SCALING,
        kind=POLICY_NAME,
        default_words="smif where a latency is given, unless parameters are kpa's; else kpa",
        lands="scaling.policy",
        sentence="Which policy decides how many replicas run.",
    ),
    Row(
        key="min-scale",
        topic=_SCALING,
        kind=Whole(0, INT32, "replicas"),
        default="0",
        lands="scaling.min_scale",
        sentence="Fewest replicas; 0 lets the function sleep.",
    ),
    Row(
        key="min-scale-windows",
        topic=_SCALING,
        kind=Checked(lambda text: bool(schedule.scale_windows(text)), schedule.ALLOWED),
        default_words="none",
        lands="scaling.min_scale_windows",
        sentence="Windows of time with a minimum scale of their own: cron expressions in the time of a zone.",
    ),
    Row(
        key="max-scale",
        topic=_SCALING,
        kind=Whole(0, INT32, "replicas"),
        default="0",
        lands="scaling.max_scale",
        sentence="Most replicas; 0: as many as the accelerators hold.",
    ),
    Row(
        key="initial-scale",
        topic=_SCALING,
        kind=Whole(0, INT32, "replicas"),
        default="1",
        default_words="1, or min-scale where that is more",
        aliases=("initialDesiredScale",),
        lands="scaling.initial_scale",
        sentence="Replicas to start with when a revision is deployed.",
    ),
    Row(
        key="scale-to-zero-after",
        topic=_SCALING,
        kind=Duration(0, 86_400),
        default="60s",
        lands="scaling.scale_to_zero_after_s",
        sentence="Time without a request after which the last replica is drained.",
    ),
    Row(
        key="dry-run",
        topic=_SCALING,
        kind=YesNo(),
        default="false",
        lands="scaling.dry_run",
        sentence="Whether the policy's decisions are only logged and exported; the number of replicas then stays.",
    ),
    Row(
        key="batch-header",
        topic=_BATCH,
        kind=Text(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", "a header name of 1 to 64 characters", lower=True),
        default="tidegate-batch-size",
        lands="batch_rule.header",
        sentence="Header in which a client says how many inferences its request carries.",
    ),
    Row(
        key="bytes-per-item",
        topic=_BATCH,
        kind=WordOr("none", Number(0, 1e12, "bytes", above=True)),
        default="none",
        lands="batch_rule.bytes_per_item",
        sentence="Body bytes of one inference, to tell the batch from content-length where the header is missing.",
    ),
    Row(
        key="batch-overhead-bytes",
        topic=_BATCH,
        kind=Number(0, 1e12, "bytes"),
        default="0",
        lands="batch_rule.overhead_bytes",
        sentence="Body bytes that do not depend on the batch, taken off before dividing by bytes-per-item.",
    ),
    Row(
        key="max-batch",
        topic=_BATCH,
        kind=Whole(1, 1_000_000, "inferences"),
        default="1024",
        lands="batch_rule.max_batch",
        sentence="Most inferences in one request; one that states more is refused with 413.",
    ),
    Row(
        key="task-class",
        topic=_WORK,
        kind=Choice(TaskClass),
        default="latency-critical",
        lands="task_class",
        sentence="Whether a client waits for each answer, or only the rate counts.",
    ),
    Row(
        key="concurrency",
        topic=_WORK,
        kind=CONCURRENCY,
        default="auto",
        lands="concurrency",
        sentence="Slots of one replica; 0: no limit; auto: what the server declares, else 4.",
    ),
    Row(
        key="concurrency-unit",
        topic=_WORK,
        kind=Choice(ConcurrencyUnit),
        default="requests",
        lands="concurrency_unit",
        sentence="What a slot counts.",
    ),
    Row(
        key="timeout",
        topic=_WORK,
        kind=TIMEOUT,
        default="5m",
        lands="timeout_s",
        sentence="Upper bound of any request's deadline, and the deadline of those that name none.",
    ),
    Row(
        key="idempotent",
        topic=_WORK,
        kind=YesNo(),
        default="false",
        lands="idempotent",
        sentence="Whether running a request twice does no harm, so that it may be sent again after a replica broke.",
    ),
    Row(
        key="user-metrics",
        topic=_WORK,
        kind=YesNo(),
        default="false",
        default_words="false, or true where spec.metrics is given",
        lands="user_metrics",
        sentence="Whether the model server's own metrics are read.",
    ),
    *ROUTING,
    *COLD,
    *ROLLOUT,
    Row(
        key="volume-mounts",
        topic=_GPU,
        kind=MOUNTS,
        default="",
        lands="volume_mounts",
        sentence="Volumes for the model server's Pod; Kubernetes only.",
    ),
    Row(
        key="gpu-model",
        topic=_GPU,
        kind=WordOr("none", Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the name of an accelerator or its model")),
        default="none",
        lands="gpu.model",
        sentence="GPU model that it needs; none: any.",
    ),
    Row(
        key="dnn-model",
        topic=_GPU,
        kind=WordOr("none", Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a name of letters, digits, dots, dashes")),
        default="none",
        lands="dnn.name",
        sentence="Name in the model repository; required with a GPU or the repository.",
    ),
    Row(
        key="dnn-quantization",
        topic=_GPU,
        kind=Choice(Quantization),
        default="fp32",
        lands="dnn.quantization",
        sentence="Which stored form of the model is taken.",
    ),
    Row(
        key="infer-batch-size",
        topic=_GPU,
        kind=Whole(1, 1_000_000, "inferences"),
        default="1",
        lands="dnn.batch_size",
        sentence="Batch for which the stored model was built, and that traffic is planned with.",
    ),
    Row(
        key="gpu-mem-limit",
        topic=_GPU,
        kind=WordOr("none", Gigabytes(0.001, 100_000)),
        default="none",
        lands="gpu.memory_gb",
        sentence="GPU memory of one replica; required with a GPU or the repository.",
    ),
    Row(
        key="mps-on",
        topic=_GPU,
        kind=YesNo(),
        default="false",
        lands="gpu.mps",
        sentence="Whether replicas share a GPU through MPS.",
    ),
    Row(
        key="gpu-core-percentage",
        topic=_GPU,
        kind=Percent(1, 100, whole=True),
        default="100",
        lands="gpu.core_percentage",
        sentence="Share of a GPU's processors for one replica; below 100 needs mps-on.",
    ),
    Row(
        key="gpu-count",
        topic=_GPU,
        kind=Whole(1, 1024, "GPUs"),
        default="1",
        lands="gpu.count",
        sentence="GPUs of one replica, all on one machine.",
    ),
)

ANNOTATION: Final[Mapping[str, Row]] = MappingProxyType(by_spelling(ANNOTATIONS))
"""Rows by every spelling of their keys, without the prefix."""


# --- parameters of policies ------------------------------------------------------------------------------------------


def _at_least(low: float, *, also: float | None = None) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        value = units.go_float(text)
        return value >= low or value == also

    return check


def _between(low: float, high: float) -> Callable[[str], bool]:
    return lambda text: low <= units.go_float(text) <= high


def _above(low: float) -> Callable[[str], bool]:
    return lambda text: units.go_float(text) > low


def _lasting(low_s: int, high_s: int, *, whole_seconds: bool) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        value = units.go_duration_ns(text)
        return low_s * 10**9 <= value <= high_s * 10**9 and not (whole_seconds and value % 10**9)

    return check


def _one_of(*words: str) -> Checked:
    return Checked(lambda text: text in words, ", ".join(words))


def _parameter(key: str, kind: Checked, default: str | None, sentence: str, default_words: str = "") -> Row:
    lands = f"scaling.parameters.{key}"
    return Row(key=key, kind=kind, lands=lands, sentence=sentence, default=default, default_words=default_words)


KPA_PARAMETERS: Final[tuple[Row, ...]] = (
    _parameter(
        "metric", _one_of("concurrency", "rps"), "concurrency", "What is averaged: requests present, or arrivals."
    ),
    _parameter(
        "target",
        Checked(_at_least(0.01), "a number, 0.01 or more"),
        None,
        "What one replica is meant to carry.",
        default_words="the concurrency limit, or 100 without one (rps: 200)",
    ),
    _parameter(
        "target-utilization-percentage",
        Checked(_between(1, 100), "a number, 1 to 100", "%"),
        "70",
        "Share of the target that is aimed at.",
    ),
    _parameter(
        "container-concurrency-target-percentage",
        Checked(lambda text: 0 < units.go_float(text) <= 100, "a number above 0, at most 100", "%"),
        "70",
        "The same for metric concurrency only; a value up to 1 is a fraction.",
    ),
    _parameter(
        "container-concurrency-target-default",
        Checked(_at_least(0.01), "a number, 0.01 or more"),
        "100",
        "Target of replicas without a concurrency limit.",
    ),
    _parameter(
        "requests-per-second-target-default",
        Checked(_at_least(0.01), "a number, 0.01 or more"),
        "200",
        "Target of metric rps.",
    ),
    _parameter(
        "target-burst-capacity",
        Checked(_at_least(0, also=-1), "-1, or a number of 0 or more"),
        "211",
        "Burst in requests that must always fit; -1: any.",
    ),
    _parameter(
        "window",
        Checked(_lasting(6, 3600, whole_seconds=True), "a duration of whole seconds, 6s to 1h (90s, 1m30s)"),
        "60s",
        "The stable window over which the metric is averaged.",
    ),
    _parameter(
        "panic-window-percentage",
        Checked(_between(1, 100), "a number, 1 to 100", "%"),
        "10",
        "The panic window as a share of the stable one.",
    ),
    _parameter(
        "panic-threshold-percentage",
        Checked(_between(110, 1000), "a number, 110 to 1000", "%"),
        "200",
        "Panic begins when replicas wanted reach this share of those ready.",
    ),
    _parameter(
        "activation-scale",
        Checked(lambda text: units.go_int(text) >= 2, f"a whole number, 2 to {INT32}"),
        None,
        "Replicas that a function gets when it wakes; within min-scale and max-scale.",
        default_words="none",
    ),
    _parameter(
        "scale-down-delay",
        Checked(_lasting(0, 3600, whole_seconds=True), "a duration of whole seconds, 0s to 1h"),
        "0s",
        "A function shrinks only to the largest size wanted within this time.",
    ),
    _parameter(
        "scale-to-zero-pod-retention-period",
        Checked(_lasting(0, 3600, whole_seconds=False), "a duration, 0s to 1h"),
        "0s",
        "The last replica stays at least this long after it could go.",
    ),
    _parameter(
        "zero-protocol",
        _one_of("tidegate", "knative"),
        "tidegate",
        "Whether an idle function goes to zero after scale-to-zero-after, or by Knative's own steps on its averages.",
    ),
    _parameter(
        "metric-aggregation-algorithm",
        _one_of("linear", "weighted-exponential", "weightedExponential"),
        "linear",
        "How samples of a window are averaged.",
    ),
    _parameter(
        "max-scale-up-rate", Checked(_above(1), "a number above 1"), "1000", "Most growth of one decision, as a factor."
    ),
    _parameter(
        "max-scale-down-rate",
        Checked(_above(1), "a number above 1"),
        "2",
        "Most shrinking of one decision, as a factor.",
    ),
)

PARAMETERS: Final[Mapping[str, tuple[Row, ...]]] = MappingProxyType(
    {"kpa": KPA_PARAMETERS, "smif": SMIF_PARAMETERS, "hpa": HPA_PARAMETERS}
)
"""Parameters of the policies that have documented ones here."""
