"""The annotations of a Knative revision (``autoscaling.knative.dev/``): their validity, and their meaning here.

Validity is Knative's own, class by class; a value that is valid there is accepted here. Each key may also be written in
camelCase; if both spellings are present, the one with dashes counts.
"""

from collections.abc import Mapping
from typing import Final

from tidegate.manifest.annotations import INT32, KPA_PARAMETERS
from tidegate.schema import units
from tidegate.schema.rows import Checked, Row, camel
from tidegate.schema.units import UnreadableError, go_int

AUTOSCALING: Final = "autoscaling.knative.dev/"
KPA_CLASS: Final = "kpa.autoscaling.knative.dev"
HPA_CLASS: Final = "hpa.autoscaling.knative.dev"

_SCALE: Final = Checked(lambda text: go_int(text) >= 0, f"a whole number, 0 to {INT32}")
_CLUSTER_ONLY: Final = frozenset(
    {
        "container-concurrency-target-percentage",
        "container-concurrency-target-default",
        "requests-per-second-target-default",
        "max-scale-up-rate",
        "max-scale-down-rate",
        "zero-protocol",
    }
)
"""Parameters that are cluster settings in Knative, or Tidegate's own, and not annotations."""


def _class_is_right(text: str) -> bool:
    return text in (KPA_CLASS, HPA_CLASS) or not text.endswith(".knative.dev")


ROWS: Final[tuple[Row, ...]] = (
    Row(
        key="class",
        kind=Checked(_class_is_right, f"{KPA_CLASS}, {HPA_CLASS}"),
        field="scaling.policy",
        default=KPA_CLASS,
        description="Autoscaler: policy kpa or hpa here.",
    ),
    Row(key="min-scale", kind=_SCALE, field="scaling.min_scale", default="0", description="Minimum replicas."),
    Row(
        key="max-scale",
        kind=_SCALE,
        field="scaling.max_scale",
        default="0",
        description="Maximum replicas; 0: no limit but the accelerators'.",
    ),
    Row(
        key="initial-scale",
        kind=_SCALE,
        field="scaling.initial_scale",
        default="1",
        description="Replicas that a revision starts with; at least min-scale.",
    ),
    *(row for row in KPA_PARAMETERS if row.key not in _CLUSTER_ONLY),
)
ROW: Final = {row.key: row for row in ROWS}
SPELLINGS: Final = {spelling: row.key for row in ROWS for spelling in (row.key, camel(row.key))}


def chosen(annotations: Mapping[str, str]) -> dict[str, str]:
    """Returns the texts by key with dashes. ``annotations`` are without prefix; keys unknown to Knative are left
    out."""
    found: dict[str, str] = {}
    for key in ROW:
        text = annotations.get(key, annotations.get(camel(key)))
        if text is not None:
            found[key] = text
    return found


def faults(
    annotations: Mapping[str, str],
    *,
    allow_zero_initial_scale: bool = True,
    max_scale_limit: int = 0,
    pod_autoscaler_class: str = KPA_CLASS,
) -> dict[str, str]:
    """Returns the annotations that Knative refuses: key to allowed values. ``annotations`` are as :func:`chosen`
    returns them.

    The keyword arguments are the cluster's settings of the same names; 0: no limit.
    """
    wrong = {
        key: ROW[key].kind.allowed
        for key, text in annotations.items()
        if not _is_valid(key, text, annotations, pod_autoscaler_class)
    }
    scale = {key: _int(annotations[key]) for key in annotations.keys() & _SCALES if key not in wrong}
    low, high = scale.get("min-scale", 0), scale.get("max-scale", 0)
    if high and low > high:
        wrong["max-scale"] = f"0, or at least min-scale, which is {low}"
    if max_scale_limit and "max-scale" in scale and not 1 <= high <= max_scale_limit:
        wrong["max-scale"] = f"a whole number, 1 to {max_scale_limit}"
    if scale.get("initial-scale") == 0 and not allow_zero_initial_scale:
        wrong["initial-scale"] = "a whole number, 1 or more"
    if "activation-scale" in scale and not low <= scale["activation-scale"] <= (high or INT32):
        wrong["activation-scale"] = f"{low} (min-scale) to {high or INT32} (max-scale)"
    return wrong


_SCALES: Final = frozenset({"min-scale", "max-scale", "initial-scale", "activation-scale"})


def _is_valid(key: str, text: str, annotations: Mapping[str, str], default_class: str) -> bool:
    if key == "metric":
        kind = annotations.get("class", default_class)
        if kind != KPA_CLASS:
            return text != "" or kind != HPA_CLASS
    if key == "metric-aggregation-algorithm" and annotations.get("class") != KPA_CLASS:
        return True
    return ROW[key].accepts(text)


def _int(text: str) -> int:
    try:
        return go_int(text)
    except UnreadableError:
        return 0


def seconds(text: str) -> int:
    """Reads a Go duration of whole seconds, 0 or more; raises UnreadableError."""
    nanoseconds = units.go_duration_ns(text)
    if nanoseconds < 0 or nanoseconds % 10**9:
        raise UnreadableError(text)
    return nanoseconds // 10**9
