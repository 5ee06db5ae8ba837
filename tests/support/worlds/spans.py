"""The spans of what a gateway passes on, as the process that exports them makes them."""

import random

from tidegate.gateway.beside.batches import Frames
from tidegate.gateway.tracing.batches import SpanBatches, decode_batch
from tidegate.gateway.tracing.facts import Traced
from tidegate.gateway.tracing.otlp import Span
from tidegate.gateway.tracing.spans import Spans


class SpanSink:
    """Takes traced requests; ``spans`` are those of all of them."""

    def __init__(self, offset: float = 0.0) -> None:
        """``offset``: Unix time less the worker's clock."""
        self.spans: list[Span] = []
        self._made = Spans(rng=random.Random(6), offset=offset, worker="g0", scheme="http").made

    def put(self, traced: Traced) -> None:
        """Packs it and makes spans of what is unpacked; the worker must have counted as many."""
        batches = SpanBatches(lambda _: None)
        batches.add(traced)
        batches.pack()
        count, data = batches.all()
        for each in Frames().feed(data):
            for found in decode_batch(each):
                made = self._made(found)
                self.spans += made
                count -= len(made)
        assert count == 0
