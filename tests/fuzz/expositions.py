"""Arbitrary metrics of a model server: a sequence of texts, each read into one meter."""

from tidegate.metrics import Exposition
from tidegate.queue_proxy.known_metrics import COUNTERS, WANTED
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters
from tidegate.queue_proxy.model_server_metrics import ModelServerMetrics
from tidegate.queue_proxy.prometheus_text import ExpositionError, Scan, scan
from tidegate.records.codec import decode, encode
from tidegate.records.replica_sample import AppSample

NEXT = b"\0"
"""Separator of two texts."""


def expositions(data: bytes) -> None:
    """Nothing raises except a bound; counters never run backwards; a sample survives encoding."""
    meter = ModelServerMetrics(("m",))
    known = dict.fromkeys(COUNTERS, 0.0)
    for second, text in enumerate(data.split(NEXT)[:8]):
        try:
            meter.take(_read(text), float(second))
        except ExpositionError as error:
            meter.failed(str(error))
        sample = meter.sample(float(second))
        assert decode(encode(sample), AppSample) == sample
        for figure in COUNTERS:
            value = getattr(sample, figure.value)
            if value is not None:
                assert value >= known[figure]
                known[figure] = value
    measure = ReplicaCounters(Identity(function="f", revision="r", group="g", replica="x", incarnation="i"), 0.0)
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
