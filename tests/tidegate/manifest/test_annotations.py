"""The table itself: every row is usable, its default is the record's, and it fills the field that it names."""

from dataclasses import replace

import pytest

from tidegate.function import Function, Server, ServerKind
from tidegate.manifest.annotations import ANNOTATION, ANNOTATIONS, KPA_PARAMETERS, PREFIX
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.manifest.spec import SPEC
from tidegate.records.route_table import Hedging
from tidegate.schema.rows import Row, reach

PLAIN = Function(name="resnet", server=Server(kind=ServerKind.COMMAND))

SMIF_TABLE_2 = (
    "latency",
    "user-metrics",
    "initialDesiredScale",
    "volume-mounts",
    "gpu-model",
    "dnn-model",
    "dnn-quantization",
    "infer-batch-size",
    "gpu-mem-limit",
    "mps-on",
    "gpu-core-percentage",
    "gpu-count",
)

# For every annotation a value other than its default, as written and as read; and what must stand beside it.
SAMPLES: dict[str, tuple[str, object, dict[str, str]]] = {
    "latency": ("150", 0.15, {}),
    "percentile": ("99.5", 99.5, {}),
    "time-per-output-token": ("50", 0.05, {"latency": "1s"}),
    "target-ips": ("12.5", 12.5, {}),
    "target-tps": ("2000", 2000.0, {}),
    "drop-after": ("2.5", 2.5, {"latency": "1s"}),
    "policy": ("smif", "smif", {"latency": "1s"}),
    "min-scale": ("2", 2, {}),
    "max-scale": ("9", 9, {}),
    "min-scale-windows": ("0 8 * * 1-5 | 10h | Europe/Berlin | 3", "0 8 * * 1-5 | 10h | Europe/Berlin | 3", {}),
    "initial-scale": ("0", 0, {}),
    "scale-to-zero-after": ("0s", 0.0, {}),
    "dry-run": ("true", True, {}),
    "batch-header": ("X-Batch", "x-batch", {}),
    "bytes-per-item": ("0.5", 0.5, {}),
    "batch-overhead-bytes": ("7", 7.0, {"bytes-per-item": "1"}),
    "max-batch": ("8", 8, {}),
    "task-class": ("throughput-oriented", "throughput-oriented", {}),
    "task-deadline": ("250ms", 0.25, {}),
    "concurrency": ("0", 0, {}),
    "concurrency-unit": ("inferences", "inferences", {}),
    "unresponsive-after": ("1m", 60.0, {}),
    "timeout": ("1h", 3600.0, {}),
    "idempotent": ("true", True, {}),
    "request-buffering": ("false", False, {}),
    "user-metrics": ("true", True, {}),
    "spread": ("power-of-two", "power-of-two", {}),
    "hash-on": ("header:X-User", "header:x-user", {"spread": "hash"}),
    "queue-order": ("deadline", "deadline", {}),
    "binding": ("early", "early", {}),
    "priority": ("9", 9, {}),
    "retry-budget": ("0", 0.0, {}),
    "hedge-after": ("p99.9", Hedging(percentile=99.9), {"idempotent": "true"}),
    "size-routing": ("off", "off", {}),
    "group-weights": ("v100=2,t4=1", {"v100": 2.0, "t4": 1.0}, {}),
    "outlier-failures": ("0", 0, {}),
    "outlier-ejection": ("500ms", 0.5, {}),
    "outlier-max-percent": ("100%", 100, {}),
    "heartbeat": ("10s", 10.0, {}),
    "cold-calls": ("accept", "accept", {}),
    "payload-sample-percent": ("10%", 10.0, {}),
    "payload-sink": ("https://[::1]:8090/events", "https://[::1]:8090/events", {}),
    "payload-redact": ("password,prompt", "password,prompt", {}),
    "payload-max-size": ("1Ki", 1024, {}),
    "rollout-duration": ("10m", 600.0, {}),
    "canary-steps": ("1,5.5,25%", (1.0, 5.5, 25.0), {}),
    "canary-window": ("10s", 10.0, {"canary-steps": "1"}),
    "shadow-percent": ("10%", 10.0, {}),
    "variant-of": ("resnet", "resnet", {"accuracy": "76.1"}),
    "accuracy": ("76.1%", 76.1, {"variant-of": "resnet"}),
    "accuracy-loss": ("4", 4.0, {"variant-of": "resnet", "accuracy": "76.1"}),
    "volume-mounts": ("a:/b", "a:/b", {}),
    "gpu-model": ("v100", "v100", {"dnn-model": "m", "gpu-mem-limit": "1"}),
    "dnn-model": ("m", "m", {}),
    "dnn-quantization": ("int8", "int8", {"dnn-model": "m"}),
    "infer-batch-size": ("16", 16, {}),
    "gpu-mem-limit": ("1.5", 1.5, {"dnn-model": "m"}),
    "mps-on": ("true", True, {"dnn-model": "m", "gpu-mem-limit": "1"}),
    "gpu-core-percentage": ("30%", 30, {"mps-on": "true", "dnn-model": "m", "gpu-mem-limit": "1"}),
    "gpu-count": ("2", 2, {"dnn-model": "m", "gpu-mem-limit": "1"}),
    "gpu-time-slices": ("4", 4, {"dnn-model": "m", "gpu-mem-limit": "1"}),
}


def manifest(annotations: dict[str, str]) -> str:
    lines = "".join(f"    {PREFIX}{key}: '{text}'\n" for key, text in annotations.items())
    return (
        "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata:\n  name: resnet\n"
        f"  annotations:\n{lines}spec:\n  server: {{model: resnet50.onnx}}\n"
    )


@pytest.mark.parametrize("row", ANNOTATIONS, ids=lambda row: row.key)
def test_an_annotation_lands_where_its_row_says(row: Row, context: ParseContext) -> None:
    text, value, beside = SAMPLES[row.key]
    kubernetes = replace(context, images=row.key == "volume-mounts")
    (function,) = read(manifest({row.key: text, **beside}), source="m", context=kubernetes).functions
    assert reach(function, row.field) == value != reach(PLAIN, row.field)


WITH_DEFAULT = [row for row in (*ANNOTATIONS, *SPEC) if row.default is not None and not row.key.startswith("metrics.")]


@pytest.mark.parametrize("row", WITH_DEFAULT, ids=lambda row: row.key)
def test_a_default_in_the_table_is_the_default_of_the_record(row: Row) -> None:
    assert row.default is not None
    assert row.kind.read(row.default) == reach(PLAIN, row.field)


@pytest.mark.parametrize("row", (*ANNOTATIONS, *SPEC, *KPA_PARAMETERS), ids=lambda row: row.key)
def test_every_row_is_fit_for_a_reference_page(row: Row) -> None:
    assert row.description.endswith(".") and row.kind.allowed
    assert row.default is None or row.accepts(row.default)
    assert row.default is not None or row.default_words


def test_all_of_smifs_table_is_there_under_its_own_names() -> None:
    assert set(SMIF_TABLE_2) <= ANNOTATION.keys()


def test_keys_have_camel_case_spellings() -> None:
    assert ANNOTATION["minScale"] is ANNOTATION["min-scale"]
    assert ANNOTATION["gpuMemLimit"].flag == "--gpu-mem-limit"
