"""The table of annotations under ``tidegate.dev/``: the SLA, SMIF's job annotations, and scaling.

Every row is also a flag of ``tidegate deploy`` (``latency`` -> ``--latency``) and a line of docs/use/annotations.md. A
key may be written in camelCase too; SMIF's ``initialDesiredScale`` is an alias. A policy's parameters are written as
``tidegate.dev/policy.NAME``; those of the KPA have Knative's names and bounds (:data:`KPA_PARAMETERS`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from tidegate.function import ConcurrencyUnit, Quantization, TaskClass
from tidegate.manifest.policy_parameters import (
    HETSEV_PARAMETERS,
    HORIZONTAL_PARAMETERS,
    HPA_PARAMETERS,
    K8S_BASELINE_PARAMETERS,
    OLTUNES_PARAMETERS,
    ORION_PARAMETERS,
    RESERVE_AND_PACK_PARAMETERS,
    SMIF_PARAMETERS,
    THEMIS_PARAMETERS,
    TIDE_PARAMETERS,
)
from tidegate.manifest.routing import ROUTING
from tidegate.records.cold_rules import ColdCalls
from tidegate.schema import time_windows, units
from tidegate.schema.rows import (
    NAME,
    Checked,
    Choice,
    Duration,
    Gigabytes,
    Number,
    Percent,
    RisingPercents,
    Row,
    Size,
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
_MOUNT: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?:/[A-Za-z0-9._/-]{1,100}(?::ro)?"
MOUNTS: Final = Text(
    rf"(?:{_MOUNT}(?:,{_MOUNT}){{0,7}})?", "at most 8 of CLAIM:/PATH or CLAIM:/PATH:ro, separated by commas"
)
POLICY_NAME: Final = Text(NAME, "the name of a policy")

_SLA, _SCALING, _BATCH, _WORK, _GPU = "SLA", "Scaling", "Batches", "Requests", "Model and GPU (SMIF)"
_COLD, _ROLLOUT, _PAYLOAD, _VARIANT = "Cold starts", "Rollout", "Payload sampling", "Variants"
SINK: Final = Text(
    r"https?://(?:[A-Za-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?(?:/[!-~]{0,500})?",
    "an http or https URL without credentials, such as http://127.0.0.1:8090/events",
)
_NAMES: Final = Text(
    r"[!-+\--~]{1,64}(?:,[!-+\--~]{1,64}){0,63}", "at most 64 names of JSON fields, separated by commas"
)

VARIANT: Final[tuple[Row, ...]] = (
    Row(
        key="variant-of",
        topic=_VARIANT,
        kind=WordOr("none", Text(NAME, "the name that all variants of the model state")),
        default="none",
        field="variant.family",
        description="Model of which this function is a variant: all functions that state the same name are.",
    ),
    Row(
        key="accuracy",
        topic=_VARIANT,
        kind=WordOr("none", Percent(0.0, 100.0)),
        default="none",
        field="variant.accuracy",
        description="Accuracy of this variant; required with variant-of.",
    ),
    Row(
        key="accuracy-loss",
        topic=_VARIANT,
        kind=Number(0, 100, "points"),
        default="0",
        field="variant.loss",
        description="Accuracy that a request may lose: while no slot is free, a variant serves it that is less "
        "accurate by at most this, or more accurate. 0: none does. Not with gRPC or OpenAI's protocol.",
    ),
)

COLD: Final[tuple[Row, ...]] = (
    Row(
        key="heartbeat",
        topic=_COLD,
        kind=WordOr("off", Duration(0.5, 600)),
        default="off",
        field="cold.heartbeat_s",
        description="Interval of comments on an event stream that waits for a cold start; the first opens it.",
    ),
    Row(
        key="cold-calls",
        topic=_COLD,
        kind=Choice(ColdCalls),
        default="wait",
        field="cold.calls",
        description="Whether other calls wait for a cold start, or get 202 and are sent again by the client.",
    ),
)

PAYLOAD: Final[tuple[Row, ...]] = (
    Row(
        key="payload-sample-percent",
        topic=_PAYLOAD,
        kind=Percent(0, 100),
        default="0",
        field="payload.percent",
        description="Share of requests whose bodies, with those of their answers, go to a sink as CloudEvents.",
    ),
    Row(
        key="payload-sink",
        topic=_PAYLOAD,
        kind=WordOr("file", SINK),
        default="file",
        field="payload.sink",
        description="URL that gets the events by POST; file: the folder payloads/ of the state directory.",
    ),
    Row(
        key="payload-redact",
        topic=_PAYLOAD,
        kind=WordOr("none", _NAMES),
        default="none",
        field="payload.redact",
        description="JSON fields whose values are replaced, at any depth; what cannot be searched is withheld.",
    ),
    Row(
        key="payload-max-size",
        topic=_PAYLOAD,
        kind=Size(1, 1 << 20),
        default="64Ki",
        field="payload.max_bytes",
        description="Bytes of each sampled body that are kept; a longer one is cut and marked.",
    ),
)

ROLLOUT: Final[tuple[Row, ...]] = (
    Row(
        key="rollout-duration",
        topic=_ROLLOUT,
        kind=WholeSeconds(Duration(0, 7 * 86_400)),
        default="0s",
        field="rollout.duration_s",
        description="Time over which all traffic moves to a new revision in steps, without checks; 0s: at once.",
    ),
    Row(
        key="canary-steps",
        topic=_ROLLOUT,
        kind=RisingPercents(),
        default="none",
        field="rollout.canary_steps",
        description="Percent of the traffic at each step of a canary; errors and SLA misses stop it.",
    ),
    Row(
        key="canary-window",
        topic=_ROLLOUT,
        kind=Duration(1, 86_400),
        default="30s",
        field="rollout.canary_window_s",
        description="Minimum time at each step of a canary.",
    ),
    Row(
        key="shadow-percent",
        topic=_ROLLOUT,
        kind=Percent(0, 100),
        default="0",
        field="rollout.shadow_percent",
        description="Share of requests copied to a new revision; clients get no response of it until it is promoted.",
    ),
)

ANNOTATIONS: Final[tuple[Row, ...]] = (
    Row(
        key="latency",
        topic=_SLA,
        kind=WordOr("none", Duration(0.001, 3600, bare="ms")),
        default="none",
        field="sla.latency_s",
        description="Latency target at the gateway, cold starts included; no request is ended by it.",
    ),
    Row(
        key="percentile",
        topic=_SLA,
        kind=Percent(1, 99.999),
        default="98",
        field="sla.percentile",
        description="Share of requests that must meet the targets for latency and time per output token.",
    ),
    Row(
        key="time-per-output-token",
        topic=_SLA,
        kind=WordOr("none", Duration(0.0001, 60, bare="ms")),
        default="none",
        field="sla.per_token_s",
        description=(
            "Target for a stream's mean time per output token behind the first, beside latency, which is then for the "
            "first one; for OpenAI's protocol."
        ),
    ),
    Row(
        key="target-ips",
        topic=_SLA,
        kind=WordOr("none", Number(0, 1e9, "inferences/s", above=True)),
        default="none",
        field="sla.target_ips",
        description="Minimum capacity while there is traffic, whatever the measured load.",
    ),
    Row(
        key="target-tps",
        topic=_SLA,
        kind=WordOr("none", Number(0, 1e12, "tokens/s", above=True)),
        default="none",
        field="sla.target_tps",
        description="As target-ips, in tokens of prompts and completions; for OpenAI's protocol.",
    ),
    Row(
        key="drop-after",
        topic=_SLA,
        kind=WordOr("none", Number(1, 1000, "times the latency target")),
        default="none",
        field="sla.drop_after",
        description=(
            "Drops a request that has waited this many times the latency target, cold start included: 503 `dropped` "
            "with Retry-After; requires latency."
        ),
    ),
    Row(
        key="policy",
        topic=_SCALING,
        kind=POLICY_NAME,
        default_words="tide with a latency (unless parameters of another policy are given), else kpa",
        field="scaling.policy",
        description="Autoscaling policy.",
    ),
    Row(
        key="min-scale",
        topic=_SCALING,
        kind=Whole(0, INT32, "replicas"),
        default="0",
        field="scaling.min_scale",
        description="Minimum replicas; 0 allows scale to zero.",
    ),
    Row(
        key="min-scale-windows",
        topic=_SCALING,
        kind=Checked(lambda text: bool(time_windows.scale_windows(text)), time_windows.ALLOWED),
        default_words="none",
        field="scaling.min_scale_windows",
        description="Time windows with their own minimum scale: cron expressions in a time zone.",
    ),
    Row(
        key="max-scale",
        topic=_SCALING,
        kind=Whole(0, INT32, "replicas"),
        default="0",
        field="scaling.max_scale",
        description="Maximum replicas; 0: as many as fit on the accelerators.",
    ),
    Row(
        key="initial-scale",
        topic=_SCALING,
        kind=Whole(0, INT32, "replicas"),
        default="1",
        default_words="1, or min-scale if larger",
        aliases=("initialDesiredScale",),
        field="scaling.initial_scale",
        description="Replicas that a new revision starts with.",
    ),
    Row(
        key="scale-to-zero-after",
        topic=_SCALING,
        kind=Duration(0, 86_400),
        default="60s",
        field="scaling.scale_to_zero_after_s",
        description="Idle time after which the last replica is drained.",
    ),
    Row(
        key="dry-run",
        topic=_SCALING,
        kind=YesNo(),
        default="false",
        field="scaling.dry_run",
        description="Whether decisions are only logged and exported; the number of replicas then stays.",
    ),
    Row(
        key="batch-header",
        topic=_BATCH,
        kind=Text(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", "a header name of 1 to 64 characters", lower=True),
        default="tidegate-batch-size",
        field="batch_rule.header",
        description="Header that states the inferences of a request.",
    ),
    Row(
        key="bytes-per-item",
        topic=_BATCH,
        kind=WordOr("none", Number(0, 1e12, "bytes", above=True)),
        default="none",
        field="batch_rule.bytes_per_item",
        description="Body bytes of one inference, to derive the batch from content-length without the header.",
    ),
    Row(
        key="batch-overhead-bytes",
        topic=_BATCH,
        kind=Number(0, 1e12, "bytes"),
        default="0",
        field="batch_rule.overhead_bytes",
        description="Body bytes that do not depend on the batch; subtracted before the division by bytes-per-item.",
    ),
    Row(
        key="max-batch",
        topic=_BATCH,
        kind=Whole(1, 1_000_000, "inferences"),
        default="1024",
        field="batch_rule.max_batch",
        description="Maximum inferences of one request; more are refused with 413.",
    ),
    Row(
        key="task-class",
        topic=_WORK,
        kind=Choice(TaskClass),
        default="latency-critical",
        field="task_class",
        description="Whether the latency of each response counts, or only the throughput: where places are short, "
        "throughput-oriented functions give theirs up first. A request may state its own class (tidegate-task-class).",
    ),
    Row(
        key="task-deadline",
        topic=_WORK,
        kind=WordOr("none", Duration(0.001, 86_400)),
        default="none",
        field="task_deadline_s",
        description="Time after its arrival at which a request is due; it orders waiting requests (queue-order "
        "urgency) and ends none. Without it the latency of the SLA, or else the request's own deadline.",
    ),
    Row(
        key="concurrency",
        topic=_WORK,
        kind=CONCURRENCY,
        default="auto",
        field="concurrency",
        description="Slots of one replica; 0: no limit; auto: as the server declares, else 4.",
    ),
    Row(
        key="concurrency-unit",
        topic=_WORK,
        kind=Choice(ConcurrencyUnit),
        default="requests",
        field="concurrency_unit",
        description="Unit of a slot: a request or an inference.",
    ),
    Row(
        key="timeout",
        topic=_WORK,
        kind=TIMEOUT,
        default="5m",
        field="timeout_s",
        description="Maximum deadline of a request, and the deadline of requests without one.",
    ),
    Row(
        key="unresponsive-after",
        topic=_WORK,
        kind=WordOr("off", Duration(0.1, 86_400)),
        default="30s",
        field="unresponsive_after_s",
        description="Time for which calls without a client may go on in a replica while no request ends; it is then "
        "replaced. The shipped server and cancel: hold.",
    ),
    Row(
        key="idempotent",
        topic=_WORK,
        kind=YesNo(),
        default="false",
        field="idempotent",
        description="Whether a request may run twice: it is then retried after a replica has failed in the middle.",
    ),
    Row(
        key="request-buffering",
        topic=_WORK,
        kind=YesNo(),
        default="true",
        field="request_buffering",
        description="Whether a request takes a slot when its body is there, or 256 KB of it; false: with its first "
        "bytes, for bodies that are streamed.",
    ),
    Row(
        key="user-metrics",
        topic=_WORK,
        kind=YesNo(),
        default="false",
        default_words="false, or true with spec.metrics",
        field="user_metrics",
        description="Whether the model server's own metrics are scraped.",
    ),
    *ROUTING,
    *COLD,
    *PAYLOAD,
    *ROLLOUT,
    *VARIANT,
    Row(
        key="volume-mounts",
        topic=_GPU,
        kind=MOUNTS,
        default="",
        field="volume_mounts",
        description="Volumes of the model server's Pod: persistent volume claims of its namespace, and where they are "
        "mounted (`models:/models:ro`). Kubernetes only: refused on one machine, whose files the model server sees.",
    ),
    Row(
        key="gpu-model",
        topic=_GPU,
        kind=WordOr("none", Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "the name of an accelerator or its model")),
        default="none",
        field="gpu.model",
        description="Required GPU model; none: any.",
    ),
    Row(
        key="dnn-model",
        topic=_GPU,
        kind=WordOr("none", Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", "a name of letters, digits, dots, dashes")),
        default="none",
        field="dnn.name",
        description="Name of the model; `server.model` with a folder of this name is a model repository.",
    ),
    Row(
        key="dnn-quantization",
        topic=_GPU,
        kind=Choice(Quantization),
        default="fp32",
        field="dnn.quantization",
        description="Stored form to run, of a model repository; else the next more precise one.",
    ),
    Row(
        key="infer-batch-size",
        topic=_GPU,
        kind=Whole(1, 1_000_000, "inferences"),
        default="1",
        field="dnn.batch_size",
        description="Largest batch of the stored form, of a model repository; also its `batching.max`.",
    ),
    Row(
        key="gpu-mem-limit",
        topic=_GPU,
        kind=WordOr("none", Gigabytes(0.001, 100_000)),
        default="none",
        field="gpu.memory_gb",
        description="GPU memory of one replica, on each of its GPUs; required with a GPU.",
    ),
    Row(
        key="mps-on",
        topic=_GPU,
        kind=YesNo(),
        default="false",
        field="gpu.mps",
        description="Whether replicas share a GPU through MPS. Without MPS on the accelerator each has a whole one.",
    ),
    Row(
        key="gpu-core-percentage",
        topic=_GPU,
        kind=Percent(1, 100, whole=True),
        default="100",
        field="gpu.core_percentage",
        description="Share of a GPU's processors for one replica; below 100 requires mps-on.",
    ),
    Row(
        key="gpu-count",
        topic=_GPU,
        kind=Whole(1, 1024, "GPUs"),
        default="1",
        field="gpu.count",
        description="Whole GPUs of one replica, all on one machine; not with mps-on.",
    ),
    Row(
        key="gpu-time-slices",
        topic=_GPU,
        kind=Whole(1, 100, "replicas"),
        default="1",
        field="gpu.time_slices",
        description="Replicas that take turns on one GPU, without MPS; each has all of it in its turn. 1: none do.",
    ),
)

ANNOTATION: Final[Mapping[str, Row]] = MappingProxyType(by_spelling(ANNOTATIONS))
"""Row by every spelling of its key, without the prefix."""


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


def _parameter(key: str, kind: Checked, default: str | None, description: str, default_words: str = "") -> Row:
    field = f"scaling.parameters.{key}"
    return Row(key=key, kind=kind, field=field, description=description, default=default, default_words=default_words)


KPA_PARAMETERS: Final[tuple[Row, ...]] = (
    _parameter(
        "metric", _one_of("concurrency", "rps"), "concurrency", "Averaged quantity: requests present, or arrivals."
    ),
    _parameter(
        "target",
        Checked(_at_least(0.01), "a number, 0.01 or more"),
        None,
        "Load that one replica should carry.",
        default_words="the concurrency limit, or 100 without one (rps: 200)",
    ),
    _parameter(
        "target-utilization-percentage",
        Checked(_between(1, 100), "a number, 1 to 100", "%"),
        "70",
        "Share of the target to plan for.",
    ),
    _parameter(
        "container-concurrency-target-percentage",
        Checked(lambda text: 0 < units.go_float(text) <= 100, "a number above 0, at most 100", "%"),
        "70",
        "As target-utilization-percentage, for metric concurrency only; a value up to 1 is a fraction.",
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
        "Burst of requests that must always fit; -1: any burst.",
    ),
    _parameter(
        "window",
        Checked(_lasting(6, 3600, whole_seconds=True), "a duration of whole seconds, 6s to 1h (90s, 1m30s)"),
        "60s",
        "Stable window over which the metric is averaged.",
    ),
    _parameter(
        "panic-window-percentage",
        Checked(_between(1, 100), "a number, 1 to 100", "%"),
        "10",
        "Panic window as a share of the stable window.",
    ),
    _parameter(
        "panic-threshold-percentage",
        Checked(_between(110, 1000), "a number, 110 to 1000", "%"),
        "200",
        "Panic starts when the desired replicas reach this share of the ready ones.",
    ),
    _parameter(
        "activation-scale",
        Checked(lambda text: units.go_int(text) >= 2, f"a whole number, 2 to {INT32}"),
        None,
        "Replicas after scaling from zero; within min-scale and max-scale.",
        default_words="none",
    ),
    _parameter(
        "scale-down-delay",
        Checked(_lasting(0, 3600, whole_seconds=True), "a duration of whole seconds, 0s to 1h"),
        "0s",
        "Scale-in goes only to the largest size desired within this time.",
    ),
    _parameter(
        "scale-to-zero-pod-retention-period",
        Checked(_lasting(0, 3600, whole_seconds=False), "a duration, 0s to 1h"),
        "0s",
        "Minimum time that the last replica is kept after it could be removed.",
    ),
    _parameter(
        "zero-protocol",
        _one_of("tidegate", "knative"),
        "tidegate",
        "Whether an idle function scales to zero after scale-to-zero-after, or by Knative's steps on its averages.",
    ),
    _parameter(
        "metric-aggregation-algorithm",
        _one_of("linear", "weighted-exponential", "weightedExponential"),
        "linear",
        "Average over the samples of a window.",
    ),
    _parameter(
        "max-scale-up-rate", Checked(_above(1), "a number above 1"), "1000", "Maximum growth per decision, as a factor."
    ),
    _parameter(
        "max-scale-down-rate",
        Checked(_above(1), "a number above 1"),
        "2",
        "Maximum scale-in per decision, as a factor.",
    ),
)

PARAMETERS: Final[Mapping[str, tuple[Row, ...]]] = MappingProxyType(
    {
        "kpa": KPA_PARAMETERS,
        "smif": SMIF_PARAMETERS,
        "tide": TIDE_PARAMETERS,
        "hpa": HPA_PARAMETERS,
        "themis": THEMIS_PARAMETERS,
        "horizontal-only": HORIZONTAL_PARAMETERS,
        "vertical-only": THEMIS_PARAMETERS,
        "hetsev-greedy": HETSEV_PARAMETERS,
        "hetsev-ilp": HETSEV_PARAMETERS,
        "k8s-baseline": K8S_BASELINE_PARAMETERS,
        "oltunes": OLTUNES_PARAMETERS,
        "orion": ORION_PARAMETERS,
        "reserve-and-pack": RESERVE_AND_PACK_PARAMETERS,
    }
)
"""Documented parameters by policy."""
