"""The reference pages that are generated from tables: ``python -m tidegate.manifest.reference docs`` writes them."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidegate.gen_ai import CATALOGUE as GEN_AI
from tidegate.manifest.annotations import ANNOTATIONS, KPA_PARAMETERS, PARAMETER_PREFIX, PREFIX
from tidegate.manifest.foreign import knative_annotations, kserve
from tidegate.manifest.policy_parameters import (
    HETSEV_PARAMETERS,
    HPA_PARAMETERS,
    K8S_BASELINE_PARAMETERS,
    OLTUNES_PARAMETERS,
    ORION_PARAMETERS,
    RESERVE_AND_PACK_PARAMETERS,
    SMIF_PARAMETERS,
    THEMIS_PARAMETERS,
    TIDE_PARAMETERS,
)
from tidegate.manifest.routing import MAX_MATCH_FIELDS, MAX_MATCHES
from tidegate.manifest.spec import SPEC
from tidegate.metrics import CATALOGUE, Metric
from tidegate.schema.rows import Row
from tidegate.settings import SETTINGS

_MADE: Final = "<!-- Made by `make docs` from the tables in {source}. Change those, not this page. -->\n"
_EXAMPLE: Final = """\
```yaml
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: resnet
  annotations:
    tidegate.dev/latency: 200ms
    tidegate.dev/max-scale: "8"
    tidegate.dev/policy: kpa
    tidegate.dev/policy.target: "2"
spec:
  server:
    model: resnet50.onnx
```
"""
MATCH_EXAMPLE: Final = """\
```yaml
spec:
  match:
    - host: models.example.com
      path-prefix: /vision
    - headers: {x-model: resnet, x-debug: null}
```
"""
SETTINGS_EXAMPLE: Final = """\
[gateway]
listen = "127.0.0.1:8080"
workers = 2

[limits]
body-bytes = "64Mi"
idle-timeout = "75s"

[log]
level = "debug"
format = "json"
"""


_UNIT_WORDS: Final = {"s": ("duration",), "%": ("percent",), "GB": ("gigabytes",)}


def pages() -> dict[str, str]:
    """Returns the text of each page by file name."""
    return {
        "use/annotations.md": annotations_page(),
        "use/settings.md": settings_page(),
        "operate/metrics.md": metrics_page(),
    }


def annotations_page() -> str:
    """Returns the page of annotations, parameters, plain values of ``spec``, and supported Knative annotations."""
    parts = [
        _MADE.format(source="tidegate/manifest/annotations.py, spec.py, routing.py and the folder foreign"),
        "# Annotations\n",
        f"The SLA of a function and its scaling, written under `{PREFIX}` in `metadata.annotations`. Each annotation is"
        " also a flag of `tidegate deploy` (`--latency 200ms`), which overrides the manifest. A key may be written in"
        " camelCase as well. Values are texts; a number needs no quotes. Unknown keys are refused. All faults of a file"
        " are reported at once, each with its line and the allowed values.\n",
        _EXAMPLE,
    ]
    for topic in dict.fromkeys(row.topic for row in ANNOTATIONS):
        parts += [f"## {topic}\n", table(row for row in ANNOTATIONS if row.topic == topic)]
    parts += [
        "`dnn-model` and `gpu-mem-limit` are required with a GPU in `accelerators` and with any `gpu-` or `mps-on`"
        " annotation; `dnn-quantization` requires `dnn-model`. `min-scale` must not exceed `max-scale`, and"
        " `initial-scale` must lie between them.\n",
        "## Parameters of policy kpa\n",
        f"Written as `{PREFIX}{PARAMETER_PREFIX}NAME`, with Knative's names, bounds and durations (`1m30s`).\n",
        table(KPA_PARAMETERS),
        "## Parameters of policy smif\n",
        f"Written as `{PREFIX}{PARAMETER_PREFIX}NAME` as well, with Tidegate's durations and percentages.\n",
        table(SMIF_PARAMETERS),
        "## Parameters of policy tide\n",
        table(TIDE_PARAMETERS),
        "## Parameters of policies themis, horizontal-only and vertical-only\n",
        table(THEMIS_PARAMETERS),
        "`horizontal-only` has no `max-cores`: its replicas have one core each.\n",
        "## Parameters of policy hpa\n",
        table(HPA_PARAMETERS),
        "## Parameters of policies hetsev-greedy and hetsev-ilp\n",
        table(HETSEV_PARAMETERS),
        "## Parameters of policy k8s-baseline\n",
        table(K8S_BASELINE_PARAMETERS),
        "## Parameters of policy oltunes\n",
        table(OLTUNES_PARAMETERS),
        "## Parameters of policy orion\n",
        table(ORION_PARAMETERS),
        "## Parameters of policy reserve-and-pack\n",
        table(RESERVE_AND_PACK_PARAMETERS),
        "## Plain values of `spec`\n",
        "In addition to `server` (exactly one of `model`, `handler`, `asgi`, `command`, `image`; a `model` may have a"
        " `format`, [formats.md](formats.md)): `models`,"
        " `accelerators`, `match`, `access` ([tenants.md](tenants.md)), `args` (of a handler's class or a loader),"
        " `env`, `secrets`, `socket`, `warmup`, `workdir` and `python`."
        " Relative paths start from the folder of the manifest. A value that is also an annotation is given in one of"
        " the two places.\n",
        table(SPEC),
        f"`match` lists up to {MAX_MATCHES} further ways to address the function. All conditions of an entry must hold:"
        " `host` (a name without port), `path-prefix` (whole segments; it is not stripped) and up to"
        f" {MAX_MATCH_FIELDS} `headers`, each with its exact value, or null for any value.\n",
        MATCH_EXAMPLE,
        "## Knative manifests\n",
        "A `Service` of `serving.knative.dev/v1` is deployed as it is, with these annotations of its template"
        f" (`{knative_annotations.AUTOSCALING}NAME`); `{PREFIX}` annotations may stand beside them. A container with a"
        " `command` runs on this machine, one with only an image on Kubernetes. An image with `args` alone is"
        " refused. Keys without effect here are reported as warnings.\n",
        table(knative_annotations.ROWS),
        "## KServe manifests\n",
        f"An `{kserve.KSERVE_KIND}` of `{kserve.KSERVE_API_VERSION}` is deployed in its common fields. What is not"
        " taken over is named: as a warning if the function works without it, else as a fault.\n",
        _kserve_table(),
    ]
    return "\n".join(parts)


def _kserve_table() -> str:
    lines = ["| key of `spec.predictor` | here |", "|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in KSERVE_FIELDS]
    return "\n".join(lines) + "\n"


KSERVE_FIELDS: Final = (
    (
        "`model.modelFormat`, `model.runtime`",
        f"the format: {', '.join(kserve.FORMATS)}; a runtime of Triton serves a repository",
    ),
    (
        "`model.storageUri`",
        f"`pvc://CLAIM/PATH`, mounted at `{kserve.MOUNT}` (Kubernetes), or `file:///PATH`; nothing is downloaded",
    ),
    ("`model.protocolVersion`", "v1 and v2 are served side by side"),
    ("`model.env`, `model.resources`", "as in Knative's manifests"),
    ("`containers`", "one, as in Knative's manifests"),
    ("`minReplicas`, `maxReplicas`", "`min-scale` (default 1, as with KServe), `max-scale`"),
    ("`scaleMetric`, `scaleTarget`", "metric and target of policy kpa (concurrency, rps) or hpa (cpu, memory)"),
    ("`containerConcurrency`, `timeout`", "`concurrency`, `timeout`"),
    ("`batcher`", "`batching` of the shipped runtime"),
    ("`canaryTrafficPercent`", "`canary-steps`: it goes on by itself after `canary-window`"),
)


def settings_page() -> str:
    """Returns the page of the keys of ``tidegate.toml``."""
    parts = [
        _MADE.format(source="tidegate/settings.py"),
        "# Settings\n",
        "Keys of `tidegate.toml` (or of the file given with `--config`). Each is also a flag of `tidegate up`, which"
        " overrides the file. Sizes are bytes or have a unit (`16Ki`); durations have a unit (`75s`).\n",
        f"```toml\n{SETTINGS_EXAMPLE}```\n",
    ]
    for section in dict.fromkeys(row.key.partition(".")[0] for row in SETTINGS):
        rows = [row for row in SETTINGS if row.key.startswith(f"{section}.")]
        parts += [f"## [{section}]\n", table(rows, flags=True)]
    return "\n".join(parts)


def metrics_page() -> str:
    """Returns the page of all metrics."""
    parts = [
        _MADE.format(source="tidegate/metrics.py and tidegate/gen_ai.py"),
        "# Metrics\n",
        "`GET /metrics` of the [control API](api.md) has the figures of the whole deployment: its own, and those of all"
        " gateway workers and queue_proxies. Series of several gateway workers with equal labels are added up; a"
        " counter keeps what a worker had counted that has ended. Series of one process have its name in a label"
        " (`worker`, `replica`) and end with it. How Prometheus reads them, with rules and alerts:"
        " [monitoring](monitoring.md).\n",
        "Durations are in seconds, sizes in bytes, prices in the currency of the accelerators' prices. A group is all"
        " replicas of a revision on one accelerator kind.\n",
    ]
    for title, (prefixes, text) in _METRIC_SECTIONS.items():
        rows = [each for each in (*CATALOGUE, *GEN_AI) if _section(each.name) == title]
        assert rows, prefixes
        parts += [f"## {title}\n", f"{text}\n", _metric_table(rows)]
    return "\n".join(parts)


_METRIC_SECTIONS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "Gateway": (("tidegate_gateway_",), "Counted where clients connect."),
    "HTTP": (
        ("http_server_",),
        "Names, labels and buckets of OpenTelemetry's semantic conventions `http.server.request.duration` and"
        " `http.server.active_requests`, where `metrics.http-server` asks for them. A method that HTTP does not have is"
        " `_OTHER`.",
    ),
    "Generative AI": (
        ("gen_ai_",),
        "Names, labels and buckets of OpenTelemetry's semantic conventions, for functions whose tokens are counted.",
    ),
    "queue_proxy": (("tidegate_queue_proxy_",), "Counted beside each model server."),
    "Model servers": (
        ("tidegate_app_",),
        "What a model server reports of itself, by our names ([which servers](../use/model-server-metrics.md)).",
    ),
    "Control process": (
        ("tidegate_",),
        "Decisions, replicas and prices. `tidegate_control_process_*` are its memory, processor time and descriptors.",
    ),
}
"""By title: beginnings of names, the first section that fits has the metric; and a sentence."""


def _section(name: str) -> str:
    return next(title for title, (prefixes, _) in _METRIC_SECTIONS.items() if name.startswith(prefixes))


def _metric_table(rows: Iterable[Metric]) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels) or "none"
        lines.append(f"| `{row.name}` | {row.kind.value} | {labels} | {row.help} |")
    return "\n".join(lines) + "\n"


def table(rows: Iterable[Row], *, flags: bool = False) -> str:
    """Returns a Markdown table, one line per row."""
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for row in rows:
        key = row.key.partition(".")[2] if flags else row.key
        names = [f"`{key}`", *(f"`{alias}`" for alias in row.aliases), *([f"`{row.flag}`"] if flags else [])]
        cells = (", ".join(names), _default(row), _allowed(row), row.description)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _default(row: Row) -> str:
    if row.default_words:
        return row.default_words
    if row.default is None:
        return "none"
    return f"`{row.default}`" if row.default else "empty"


def _allowed(row: Row) -> str:
    """Returns the allowed values, with the unit if the words do not name it."""
    allowed, unit = row.kind.allowed, row.kind.unit
    is_said = not unit or unit in allowed or any(word in allowed for word in _UNIT_WORDS.get(unit, ()))
    return allowed if is_said else f"{allowed} ({unit})"


if __name__ == "__main__":
    for name, page in pages().items():
        (Path(sys.argv[1]) / name).write_text(page, encoding="utf-8")
