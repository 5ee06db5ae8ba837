"""What the side processes of a gateway take: the log writer for a line, the exporter for a sampled request.

    python -m benchmarks.micro.sides_bench [--rounds 50] [--ms 2] [--instructions]

Batches as a worker sends them: lines of JSON with ids, sizes and times of their own (``--ms`` on average), one of a
hundred with a trace, and requests that a queue_proxy has timed. Each process reads and decodes them, and makes lines or
an encoded request of its spans. Lines go to ``/dev/null``, spans to no collector. Prints one JSON line: microseconds in
the best round.

With ``--instructions`` each runs under callgrind instead: instructions from the difference of two lengths of run.
Needs ``valgrind``.
"""

import argparse
import json
import os
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.micro.callgrind import counted
from tidegate.aio.allocator import keep_memory
from tidegate.gateway.beside.batches import HANDED_BYTES, Frames
from tidegate.gateway.beside.main import Task

SIDES: Final = ("line", "sampled")
REQUESTS: Final = 1024
"""Requests of a round."""
MODULE: Final = "benchmarks.micro.sides_bench"
LENGTHS: Final = {"line": (2, 34), "sampled": (2, 5)}
"""Rounds of the two runs under callgrind. The start of a process differs by some million instructions."""


def log_batches(ms: float) -> bytes:
    """Batches of the access log."""
    from tests.support.worlds.access_lines import ended
    from tidegate.gateway.access_log.records import AccessLog
    from tidegate.gateway.tracing.trace import Trace

    rng, log = random.Random(1), AccessLog(1.0, rng=random.Random(2), take=lambda batches: None)
    now = 1000.0
    for number in range(REQUESTS):
        ex, state = ended(target="/v2/models/resnet/infer")
        ex.received = state.bound_at = now
        ex.first_byte = now + rng.uniform(0.2e-3, 1.8e-3) * ms
        ex.ended = ex.first_byte + rng.uniform(1e-5, 1e-4)
        ex.inferences, ex.bytes_in, ex.bytes_out = 1, rng.randrange(200, 2000), rng.randrange(100, 2000)
        state.request_id = b"%032x" % rng.getrandbits(128)
        if number % 100 == 0:
            state.trace = Trace()
            state.trace.parent = b"00-%032x-00f067aa0ba902b7-01" % (number + 1)
        log.ended(ex, state)
        now += 1e-4
    log.pack()
    return log.all()[1]


def span_batches() -> bytes:
    """Batches of sampled requests."""
    from tidegate.gateway.tracing.batches import SpanBatches
    from tidegate.gateway.tracing.facts import Answer, Asked, Attempt

    rng, batches = random.Random(1), SpanBatches(lambda batches: None)
    now = 1000.0
    for number in range(REQUESTS):
        asked: Asked = (
            b"POST",
            b"/v2/models/resnet/infer",
            b"resnet.localhost",
            False,
            1,
            b"%032x" % number,
            None,
            False,
        )
        end = now + rng.uniform(3e-4, 4e-3)
        attempts: list[Attempt] = [("resnet-00001-abcde", "cpu", now, rng.getrandbits(64) or 1)]
        answers: list[Answer] = [
            ("resnet-00001-abcde", end - 5e-5, 200, b"queue=0.%03d,model=1.%03d" % (number % 1000, number % 997))
        ]
        parent = b"00-%032x-%016x-01" % (rng.getrandbits(128) or 1, rng.getrandbits(64) or 1)
        batches.add((5, parent, b"", 0, now, end, 200, "resnet", "resnet-00001", attempts, answers, None, asked))
        now += 1e-2
    batches.pack()
    return batches.all()[1]


class NoCollector:
    """Encodes spans as the exporter's thread does, and sends them nowhere."""

    exported = dropped = 0
    fault = None
    is_busy = False

    def __init__(self) -> None:
        self._spans: list[Any] = []

    def put(self, spans: Sequence[Any]) -> None:
        from tidegate.gateway.tracing.live import BATCH
        from tidegate.gateway.tracing.otlp import encode_request, encode_span

        self._spans += spans
        while len(self._spans) >= BATCH:
            batch, self._spans = self._spans[:BATCH], self._spans[BATCH:]
            encode_request([(span, encode_span(span)) for span in batch], "1")

    def close(self) -> None:
        """Nothing is open."""


def task_of(side: str) -> Task:
    """Returns what this side process does."""
    if side == "line":
        from tidegate.gateway.access_log.lines import Lines
        from tidegate.gateway.access_log.main import Writer

        return Writer(os.open(os.devnull, os.O_WRONLY), Lines(as_json=True, offset=1.7e9))
    from tidegate.gateway.tracing.main import SpanTask
    from tidegate.gateway.tracing.spans import Spans

    spans = Spans(rng=random.Random(3), offset=1.7e9, worker="w", scheme="http")
    return SpanTask(NoCollector(), spans)  # type: ignore[arg-type]  # without the thread and its connection


def run(side: str, data: bytes, rounds: int) -> float:
    """Handles the batches so many times; CPU seconds of the best round."""
    keep_memory()
    task, frames, best = task_of(side), Frames(), 1e9
    pieces = [data[at : at + HANDED_BYTES] for at in range(0, len(data), HANDED_BYTES)]
    for _ in range(rounds):
        begun = time.process_time()
        for piece in pieces:
            for batch in frames.feed(piece):
                task.take(batch)
            task.turn()
        best = min(best, time.process_time() - begun)
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=50, help=f"of {REQUESTS} requests; the best one counts")
    parser.add_argument("--ms", type=float, default=2.0, help="time of a request in milliseconds")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side is not None:
        run(arguments.side, arguments.data.read_bytes(), arguments.rounds)
        return
    costs: dict[str, float] = {}
    for side, data in zip(SIDES, (log_batches(arguments.ms), span_batches()), strict=True):
        if arguments.instructions:
            with tempfile.NamedTemporaryFile() as file:
                Path(file.name).write_bytes(data)
                words = ["--side", side, "--data", file.name]
                costs[side] = round(counted(MODULE, words, LENGTHS[side]) / REQUESTS)
        else:
            costs[side] = round(run(side, data, arguments.rounds) / REQUESTS * 1e6, 2)
    unit = "instructions" if arguments.instructions else "us"
    row = {
        "benchmark": "sides",
        "unit": f"{unit} per request",
        "ms": arguments.ms,
        **costs,
        "python": platform.python_version(),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
