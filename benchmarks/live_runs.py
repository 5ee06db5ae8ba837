"""Common parts of the sets of live experiments: options, a JSON line per figure, a table at the end, the exit code."""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, TypeVar

from benchmarks.macro.harness import commit
from tidegate.control.sdk import ApiError, NotRunningError, StartFailedError


class Figure(Protocol):
    """A row of the table."""

    @property
    def is_missed(self) -> bool:
        """Whether a judged bound does not hold."""
        ...

    def record(self) -> Mapping[str, object]:
        """For JSON."""
        ...


Row = TypeVar("Row", bound=Figure)


def parser(description: str | None, names: Collection[str], seed: int) -> argparse.ArgumentParser:
    """With the options that all sets have; ``description``: the first line is shown."""
    made = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    made.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    made.add_argument("--smoke", action="store_true")
    made.add_argument("--json", action="store_true", help="no table at the end")
    made.add_argument("--seed", type=int, default=seed)
    return made


def given(made: argparse.ArgumentParser, names: Collection[str]) -> argparse.Namespace:
    """The command line; without a name all of ``names`` are meant. Ends the process for an unknown one."""
    found = made.parse_args()
    if unknown := sorted(set(found.names) - set(names)):
        made.error(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    found.names = found.names or list(names)
    return found


def play(
    options: argparse.Namespace,
    run: Callable[[str], Iterable[Row | Mapping[str, object]]],
    table: Callable[[list[Row]], str],
) -> int:
    """Runs the experiments of ``options``; mappings are printed among the rows and not judged. Returns the exit code: 1
    where one broke or a judged bound is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end too
    origin = {"commit": commit(), "cores": len(os.sched_getaffinity(0)), "smoke": options.smoke}
    rows: list[Row] = []
    broken = []
    for name in options.names:
        began = time.monotonic()
        try:
            for each in run(name):
                if isinstance(each, Mapping):
                    record = each
                else:
                    rows.append(each)
                    record = each.record()
                load = {"load_average": round(os.getloadavg()[0], 1)}
                print(json.dumps({**record, **origin, **load}), flush=True)
        except (RuntimeError, OSError, ApiError, NotRunningError, StartFailedError) as error:
            broken.append(name)
            print(f"{name}: FAILED: {error}", file=sys.stderr)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if not options.json:
        print(f"\n{table(rows)}")
    return 1 if broken or any(row.is_missed for row in rows) else 0
