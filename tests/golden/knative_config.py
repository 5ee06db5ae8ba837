"""The cluster-wide map ``config-autoscaler`` of a Knative installation: which values are valid.

Tidegate has no such map: the same words are parameters of policy ``kpa``, per function. This is for reading the map of
an installation that is moved here; the bounds are Knative's own, and where the parameters' table has the same ones
they are taken from there.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.manifest.annotations import INT32, KPA_PARAMETERS
from tidegate.schema import units
from tidegate.schema.rows import Checked, Kind, accepts

TRUE: Final = frozenset({"1", "t", "T", "true", "TRUE", "True"})
FALSE: Final = frozenset({"0", "f", "F", "false", "FALSE", "False"})
LEAST_TARGET: Final = 0.01

_PARAMETER: Final = {row.key: row.kind for row in KPA_PARAMETERS}


def _duration(is_right: Callable[[int], bool], allowed: str) -> Checked:
    return Checked(lambda text: is_right(units.go_duration_ns(text)), allowed)


def _whole(low: int) -> Checked:
    return Checked(lambda text: units.go_int(text) >= low, f"a whole number, {low} to {INT32}")


KEYS: Final[Mapping[str, Kind]] = {
    "container-concurrency-target-percentage": _PARAMETER["container-concurrency-target-percentage"],
    "container-concurrency-target-default": Checked(lambda text: units.go_float(text) > 0, "a number above 0"),
    "requests-per-second-target-default": _PARAMETER["requests-per-second-target-default"],
    "target-burst-capacity": _PARAMETER["target-burst-capacity"],
    "stable-window": _PARAMETER["window"],
    "panic-window-percentage": _PARAMETER["panic-window-percentage"],
    "panic-threshold-percentage": Checked(lambda text: units.go_float(text) is not None, "a number"),
    "max-scale-up-rate": _PARAMETER["max-scale-up-rate"],
    "max-scale-down-rate": _PARAMETER["max-scale-down-rate"],
    "enable-scale-to-zero": Checked(lambda text: text in TRUE | FALSE, "true or false"),
    "allow-zero-initial-scale": Checked(lambda text: text in TRUE | FALSE, "true or false"),
    "scale-to-zero-grace-period": _duration(lambda value: value > 0, "a duration above 0"),
    "scale-to-zero-pod-retention-period": _duration(lambda value: value >= 0, "a duration, 0s or more"),
    "scale-down-delay": _duration(
        lambda value: value >= 0 and value % 10**9 == 0, "a duration of whole seconds, 0s or more"
    ),
    "initial-scale": _whole(0),
    "min-scale": _whole(0),
    "max-scale": _whole(0),
    "max-scale-limit": _whole(0),
    "activator-capacity": Checked(lambda text: units.go_float(text) >= 1, "a number, 1 or more"),
}


def faults(data: Mapping[str, str]) -> dict[str, str]:
    """What Knative refuses of the map: key to what is allowed. Keys that it does not know are ignored, as there."""
    wrong = {key: kind.allowed for key, kind in KEYS.items() if key in data and not accepts(kind, data[key])}
    if not {"container-concurrency-target-percentage", "container-concurrency-target-default"} & wrong.keys():
        share = units.go_float(data.get("container-concurrency-target-percentage", "70"))
        share = share if share <= 1.0 else share / 100.0
        if share * units.go_float(data.get("container-concurrency-target-default", "100")) < LEAST_TARGET:
            wrong["container-concurrency-target-default"] = f"times the percentage {LEAST_TARGET} or more"
    scale = {key: units.go_int(data.get(key, default)) for key, default in _SCALES.items() if key not in wrong}
    if scale.get("initial-scale") == 0 and data.get("allow-zero-initial-scale") not in TRUE:
        wrong["initial-scale"] = "1 or more, unless allow-zero-initial-scale is true"
    high, limit = scale.get("max-scale", 0), scale.get("max-scale-limit", 0)
    if high and scale.get("min-scale", 0) > high:
        wrong["min-scale"] = f"at most max-scale, which is {high}"
    if limit and not 1 <= high <= limit:
        wrong["max-scale"] = f"1 to max-scale-limit, which is {limit}"
    return wrong


_SCALES: Final = {"initial-scale": "1", "min-scale": "0", "max-scale": "0", "max-scale-limit": "0"}
