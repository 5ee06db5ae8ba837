"""Readers of small option languages: ``spike:base=100,peak=400,at=10s,span=5s``, ``1:0.5,8:0.3``, ``0s:100:4:10``."""

import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tidegate.loadgen.arrivals import processes as arrivals
from tidegate.loadgen.arrivals import shapes
from tidegate.loadgen.arrivals.changes import Placement
from tidegate.loadgen.arrivals.pace import LoadPhase
from tidegate.loadgen.arrivals.shapes import Load
from tidegate.loadgen.arrivals.workloads import OLTUNES, THESIS
from tidegate.schema.units import UnreadableError, duration, number, whole
from tidegate.schema.yaml_nodes import Faults, nearest

MAX_RATE: Final = 1_000_000.0
MAX_WORKERS: Final = 10_000
MAX_BATCH: Final = 100_000
_TIMES: Final = frozenset({"at", "span", "period"})

_KEYS: Final = {
    "constant": ("rate",),
    "ramp": ("low", "peak"),
    "spike": ("base", "peak", "at", "span"),
    "diurnal": ("low", "high", "period"),
    "production": ("low", "high"),
    "fluctuating": ("capacity",),
}
_OWN_LENGTH: Final = frozenset({"production", "fluctuating"})
SHAPES: Final = (
    "constant:rate=R, ramp:low=R,peak=R, spike:base=R,peak=R,at=T,span=T, diurnal:low=R,high=R,period=T,"
    " production:low=R,high=R, fluctuating:capacity=R, oltunes:MODEL, steps:T@R,T@R,... or mmpp:T@R,T@R,..."
    " (R: requests/s, T: a time such as 10s)"
)
MMPP: Final = "mmpp"


def shape(text: str, duration_s: float | None, faults: Faults, placement: Placement = Placement.POISSON) -> Load | None:
    """Returns a shape over ``duration_s``; None if there are faults. ``steps`` contain their durations, and HetSev's
    patterns have one that is stretched. OLTunes' rates depend on ``placement``."""
    name, _, rest = text.partition(":")
    if name == "steps":
        spans = _spans(name, rest, faults)
        return None if spans is None else shapes.steps(spans)
    if name == "oltunes":
        return _oltunes(rest, duration_s, faults, placement)
    keys = _KEYS.get(name)
    if keys is None:
        faults.add("--shape", text, SHAPES + nearest(name, [*_KEYS, "steps", "oltunes", MMPP]))
        return None
    if duration_s is None and name not in _OWN_LENGTH:
        faults.report("--for", "nothing", f"how long the shape {name} lasts, such as 60s")
    values: dict[str, float] = {}
    for part in rest.split(","):
        key, _, word = part.partition("=")
        value = _value(key, word) if key in keys and key not in values else None
        if value is None:
            faults.add("--shape", part, f"{name}:{','.join(f'{each}=...' for each in keys)}, each once")
            return None
        values[key] = value
    if missing := [key for key in keys if key not in values]:
        faults.report("--shape", f"{name} without {', '.join(missing)}", SHAPES)
        return None
    if name in _OWN_LENGTH:
        load = shapes.production(**values) if name == "production" else shapes.fluctuating(**values)
        load = load._replace(highest=max(values.values()))
        return load if duration_s is None else shapes.stretched(load, duration_s)
    return None if duration_s is None else _shape(name, values, duration_s, text, faults)


def _oltunes(model: str, duration_s: float | None, faults: Faults, placement: Placement) -> Load | None:
    rates = OLTUNES.get(model)
    if rates is None:
        faults.add(
            "--shape", f"oltunes:{model}", f"oltunes:MODEL, one of {', '.join(OLTUNES)}{nearest(model, OLTUNES)}"
        )
        return None
    if duration_s is None:
        faults.report("--for", "nothing", "how long the shape oltunes lasts, such as 60s")
        return None
    return shapes.constant(duration_s, rates.of(placement))


def modulated(text: str, faults: Faults) -> list[tuple[float, float]] | None:
    """Returns the states of a Markov-modulated Poisson process, ``mmpp:T@R,T@R,...``: (mean stay in seconds, rate) of
    each."""
    name, _, rest = text.partition(":")
    states = _spans(name, rest, faults)
    if states is not None and len(states) < 2:
        faults.report("--shape", f"{name} of one state", f"{name}:T@R,T@R,...: two states or more")
        return None
    return states


def _shape(name: str, given: dict[str, float], duration_s: float, text: str, faults: Faults) -> Load | None:
    try:
        if name == "constant":
            load = shapes.constant(duration_s, given["rate"])
        elif name == "ramp":
            low, peak = given["low"], given["peak"]
            load = Load(arrivals.ramp(duration_s, low, peak), duration_s, max(low, peak))
        elif name == "spike":
            load = shapes.spike(duration_s, given["base"], given["peak"], given["at"], given["span"])
        else:
            if not given["period"] > 0.0:
                raise ValueError("a period of 0 s")
            load = shapes.diurnal(duration_s, given["low"], given["high"], given["period"])
            load = load._replace(highest=max(given["low"], given["high"]))
    except ValueError as error:
        faults.report("--shape", text, f"a shape that can be ({error})")
        return None
    return load


def _spans(name: str, rest: str, faults: Faults) -> list[tuple[float, float]] | None:
    """Returns ``T@R,T@R,...`` as (seconds, rate)."""
    spans = []
    for part in rest.split(","):
        length, _, word = part.partition("@")
        span_s, rate = _value("at", length), _value("rate", word)
        if span_s is None or rate is None or not span_s > 0.0:
            faults.add("--shape", part, f"{name}:T@R,T@R,...: times above 0 such as 10s, rates in requests/s")
            return None
        spans.append((span_s, rate))
    return spans


class Batches(NamedTuple):
    """Batch sizes of requests and their weights."""

    sizes: tuple[int, ...]
    weights: tuple[float, ...]

    def drawer(self, rng: random.Random) -> Callable[[], int]:
        """Returns a function that draws one size after the other."""
        if len(self.sizes) == 1:
            only = self.sizes[0]
            return lambda: only
        return lambda: rng.choices(self.sizes, self.weights)[0]


def batches(text: str, faults: Faults) -> Batches:
    """Reads ``1:0.5,8:0.3,32:0.2``, or a single size; weights need not sum to 1."""
    sizes, weights = [], []
    for part in text.split(","):
        size, colon, weight = part.partition(":")
        found, share = _whole(size, MAX_BATCH), _value("rate", weight) if colon else 1.0
        if found is None or share is None or found in sizes:
            faults.add("--batches", part, f"SIZE or SIZE:WEIGHT, each size once, 1 to {MAX_BATCH}, a weight from 0 on")
            continue
        sizes.append(found)
        weights.append(share)
    if sizes and not sum(weights) > 0.0:
        faults.add("--batches", text, "weights of which one is above 0")
    return Batches(tuple(sizes), tuple(weights))


def phases(texts: Sequence[str], faults: Faults) -> list[LoadPhase]:
    """Reads phases of the thesis: ``START:N:WORKERS:RATE`` each, the rate in requests/s of one worker; or the name of
    one of its experiments."""
    found: list[LoadPhase] = []
    for text in texts:
        if text in THESIS:
            found += THESIS[text]
            continue
        parts = text.split(":")
        if len(parts) != 4:
            faults.add("--phase", text, f"START:N:WORKERS:RATE, such as 60s:1000:4:10, {' or '.join(THESIS)}")
            continue
        start_s, rate = _value("at", parts[0]), _value("rate", parts[3])
        count, workers = _whole(parts[1], 1_000_000_000), _whole(parts[2], MAX_WORKERS)
        if start_s is None or count is None or workers is None or not rate:
            allowed = (
                f"START:N:WORKERS:RATE: a time (60s), requests from 1 on, 1 to {MAX_WORKERS} workers, a rate above 0"
            )
            faults.add("--phase", text, allowed)
            continue
        if found and sum(each.workers for each in found) + workers > MAX_WORKERS:
            faults.add("--phase", text, f"at most {MAX_WORKERS} workers in all phases")
            continue
        found.append(LoadPhase(start_s, count, workers, rate))
    return found


def _value(key: str, word: str) -> float | None:
    """Returns a time or a rate from 0 on; None if it is unreadable."""
    try:
        value = duration(word) if key in _TIMES else number(word)
    except UnreadableError:
        return None
    return value if key in _TIMES or value <= MAX_RATE else None


def _whole(word: str, most: int) -> int | None:
    try:
        value = whole(word)
    except UnreadableError:
        return None
    return value if 1 <= value <= most else None
