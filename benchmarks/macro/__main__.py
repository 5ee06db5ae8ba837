"""The HTTP data plane beside its peers: one command starts backend and peers, pinned, and compares them.

    python -m benchmarks.macro [QUESTION ...] [--smoke] [--json | --markdown] [--peer NAME=COMMAND] ...

Without a question all are asked. Each is a module of this folder that says how it is measured. Prints one JSON line
per figure as soon as a question is answered, and a table of all at the end. A peer that is not installed is named and
its figures say "not measured". The exit code is 1 when a request failed or a process died, not when a bound is missed.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.macro import events, grpc, hops, idle, latency, observability, overhead, report, small, tensors, workers
from benchmarks.macro.harness import Bench, Machine, commit, find_tools
from benchmarks.macro.report import Row, missing

QUESTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "small": small.measure,
    "hops": hops.measure,
    "latency": latency.measure,
    "tensors": tensors.measure,
    "events": events.measure,
    "idle": idle.measure,
    "workers": workers.measure,
    "overhead": overhead.measure,
    "grpc": grpc.measure,
    "observability": observability.measure,
}
NEEDED = ("nginx", "wrk", "taskset")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.macro", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--rounds", type=int, default=5, help="that count; one more warms up")
    parser.add_argument("--seconds", type=int, default=2, help="of each visit, whole seconds")
    parser.add_argument("--smoke", action="store_true", help="one short round: does it work? Figures not to be quoted")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="with {port} to listen on, {upstream} and {upstream_port}",
    )
    parser.add_argument("--json", action="store_true", help="no table")
    parser.add_argument(
        "--markdown", action="store_true", help="a table for docs/operate/benchmarks.md, and no JSON lines"
    )
    chosen = parser.parse_args()
    unknown = [name for name in chosen.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if any("=" not in peer for peer in chosen.peer):
        parser.error("--peer takes NAME=COMMAND")
    return chosen


def ask(bench: Bench, names: list[str], machine: dict[str, str | float], as_json: bool) -> tuple[list[Row], bool]:
    """All rows, and whether every question came to its end."""
    rows: list[Row] = []
    complete = True
    for name in names:
        begun = time.monotonic()
        around = machine | {"load_average": round(os.getloadavg()[0], 1)}
        try:
            for row in QUESTIONS[name](bench):
                rows.append(row)
                if as_json:
                    print(json.dumps(row.record() | around), flush=True)
        except (RuntimeError, OSError) as error:
            complete = False
            print(f"{name}: FAILED: {error}", file=sys.stderr)
        print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return rows, complete


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end too
    idle.files()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    names = chosen.questions or list(QUESTIONS)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        tools, absent = find_tools(Path(folder))
        for name, why in absent.items():
            print(f"{name}: {why}", file=sys.stderr)
        lacking = [absent[tool] for tool in NEEDED if tool in absent]
        if len(cores) < 2:
            lacking.append("two cores are needed, one for the proxy and one for the load")
        if lacking:
            for name in names:
                print(json.dumps(missing(name, "-", "all", "; ".join(lacking)).record()))
            return 0
        bench = Bench(
            Machine(cores),
            tools,
            absent,
            tuple(chosen.peer),
            rounds=1 if chosen.smoke else chosen.rounds,
            seconds=1 if chosen.smoke else chosen.seconds,
            smoke=chosen.smoke,
        )
        os.sched_setaffinity(0, {cores[1]})
        origin: dict[str, str | float] = {"commit": commit(), "machine": str(bench.machine)}
        rows = [missing("all", "-", peer, why) for peer, why in absent.items()]
        if not chosen.markdown:
            for row in rows:
                print(json.dumps(row.record() | origin), flush=True)
        asked, complete = ask(bench, names, origin, not chosen.markdown)
        rows = asked + rows
    if chosen.markdown:
        print(report.markdown(rows))
    elif not chosen.json:
        print(f"\n{report.table(rows)}")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
