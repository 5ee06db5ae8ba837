"""The phases of a replica's cold start: a record, and its short text for environments and slot channels."""

from collections.abc import Iterator
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStartPhases:
    """Durations of one replica's start in seconds; None: not reached yet."""

    decide_s: float | None = None
    """First waiting request seen by the control process -> decision made."""
    schedule_s: float | None = None
    """Decision made -> processes spawned."""
    pull_s: float | None = None
    """Image or model fetched; 0 where everything is local."""
    load_s: float | None = None
    """Spawned -> the model server's readiness probe passed."""
    warm_s: float | None = None
    """The warm-up request."""
    first_response_s: float | None = None
    """Ready -> first response byte, as the gateway saw it."""


def known_phases(phases: ColdStartPhases) -> Iterator[tuple[str, float]]:
    """(name without unit, seconds) of the phases that were reached, in the order in which they happen."""
    for field in fields(phases):
        seconds = getattr(phases, field.name)
        if seconds is not None:
            yield field.name.removesuffix("_s"), seconds


def write_phases(phases: ColdStartPhases) -> str:
    """``decide=0.0018,schedule=0.004``, in seconds to the microsecond; empty when none is known."""
    return ",".join(f"{name}={seconds:.6f}".rstrip("0").rstrip(".") for name, seconds in known_phases(phases))


def read_phases(text: str) -> ColdStartPhases:
    """The phases of such a text; raises ValueError for a name or number that is none."""
    values: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, seconds = part.partition("=")
        key = f"{name.strip()}_s"
        if key not in ColdStartPhases.__dataclass_fields__:
            raise ValueError(f"no phase is called {name.strip()[:40]!r}")
        value = float(seconds)
        if not 0.0 <= value < float("inf"):
            raise ValueError(f"no duration: {seconds[:40]!r}")
        values[key] = value
    return ColdStartPhases(**values)
