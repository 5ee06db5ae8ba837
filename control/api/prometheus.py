"""The control process's ``/metrics``: its own figures and everything that workers and replicas show, in one text.

Series that several processes show with equal labels are one series here: counters, histograms and levels add up,
ages are the oldest one's. A text that cannot be parsed is left out and counted; one bad process hides no other.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OLDEST: Final = ("oldest",)
"""Parts of a name that mark an age: of several, the largest counts."""


class Merged(Collector):
    """The families of several texts as one collection."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.unreadable = 0
        self._families: dict[str, Metric] = {}
        self._samples: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text in texts:
            try:
                families = list(text_string_to_metric_families(text))
            except ValueError:
                self.unreadable += 1
                continue
            for family in families:
                self._add(family)

    def _add(self, family: Metric) -> None:
        self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        samples = self._samples.setdefault(family.name, {})
        largest = any(part in family.name for part in OLDEST)
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            before = samples.get(key, 0.0)
            samples[key] = max(before, sample.value) if largest else before + sample.value

    def collect(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            family.samples = [
                Sample(sample, dict(labels), value) for (sample, labels), value in self._samples[name].items()
            ]
            yield family


def render(own: CollectorRegistry, texts: Iterable[str]) -> bytes:
    """The control process's own registry, then the others' merged."""
    merged = CollectorRegistry(auto_describe=False)
    others = Merged(texts)
    merged.register(others)
    note = (
        "# HELP tidegate_control_unreadable_expositions Processes whose metrics could not be read just now.\n"
        "# TYPE tidegate_control_unreadable_expositions gauge\n"
        f"tidegate_control_unreadable_expositions {others.unreadable}\n"
    )
    return generate_latest(own) + note.encode() + generate_latest(merged)
