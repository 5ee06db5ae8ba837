"""Metrics of a model server that says anything: a sequence of texts, each read into one meter."""

from queue_proxy.app import AppMeter
from queue_proxy.engines import COUNTERS, WANTED
from queue_proxy.exposition import ExpositionError, Scan, scan
from queue_proxy.metrics import Identity, Measure
from tidegate.codec import decode, encode
from tidegate.metrics import Exposition
from tidegate.sample import AppSample

NEXT = b"\0"
"""Between two texts."""


def expositions(data: bytes) -> None:
    """Nothing raises but a bound; counters never run backwards; a sample survives the wire."""
    meter = AppMeter(("m",))
    known = dict.fromkeys(COUNTERS, 0.0)
    for second, text in enumerate(data.split(NEXT)[:8]):
        try:
            meter.take(_read(text), float(second))
        except ExpositionError as error:
            meter.failed(str(error))
        sample = meter.sample(float(second))
        assert decode(encode(sample), AppSample) == sample
        for figure in COUNTERS:
            told = getattr(sample, figure.value)
            if told is not None:
                assert told >= known[figure]
                known[figure] = told
    measure = Measure(Identity(function="f", revision="r", group="g", replica="x", incarnation="i"), 0.0)
    into = Exposition()
    meter.expose(into, measure, 9.0)
    meter.news()


def _read(text: bytes) -> Scan:
    reading = scan(text, WANTED)
    while True:
        try:
            next(reading)
        except StopIteration as done:
            found: Scan = done.value
            return found
