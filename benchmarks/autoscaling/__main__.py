"""Live experiments on scaling and weights, against a real `tidegate up`: is what the papers promise kept?

    python -m benchmarks.autoscaling [NAME ...] [--smoke] [--json] [--seed N] [--trace FILE] [--out FOLDER]

Without a name all of them run. One JSON line per figure, with what was required of it; plots and timelines lie under
``--out``. ``--smoke`` runs each for seconds, to see that it works: bounds that need longer are shown and not judged.
The exit code is 1 where a judged bound is missed. docs/benchmarks.md says what each shows.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from benchmarks.autoscaling import age, batches, flip, mu, sizes, sm3, steady, three_kinds, twitter
from benchmarks.autoscaling.results import Judge, Row, table
from benchmarks.autoscaling.setup import Setup
from benchmarks.macro.harness import commit
from control.sdk import ApiError, NotRunningError, StartFailedError

EXPERIMENTS: dict[str, ModuleType] = {
    "sm3": sm3,
    "mu": mu,
    "steady": steady,
    "twitter": twitter,
    "batches": batches,
    "three_kinds": three_kinds,
    "sizes": sizes,
    "age": age,
    "flip": flip,
}
Run = Callable[[Setup, Judge], Iterator[Row]]
TRACE = Path(__file__).resolve().parent / "data" / "twitter-40min.txt.gz"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true", help="no table at the end")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--trace", type=Path, default=TRACE, help="requests per second, one whole number a line")
    parser.add_argument("--out", type=Path, default=Path("build/autoscaling"))
    given = parser.parse_args()
    unknown = sorted(set(given.names) - EXPERIMENTS.keys())
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    return given


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end too
    setup = Setup(smoke=given.smoke, seed=given.seed, out=given.out, trace=given.trace)
    origin = {"commit": commit(), "cores": len(os.sched_getaffinity(0)), "smoke": given.smoke}
    rows: list[Row] = []
    broken = []
    for name in given.names or EXPERIMENTS:
        began, run = time.monotonic(), EXPERIMENTS[name].run
        judge = Judge(name, given.smoke)
        try:
            for row in run(setup, judge):
                rows.append(row)
                print(json.dumps(row.record() | origin | {"load_average": round(os.getloadavg()[0], 1)}), flush=True)
        except (RuntimeError, OSError, ApiError, NotRunningError, StartFailedError) as error:
            broken.append(name)
            print(f"{name}: FAILED: {error}", file=sys.stderr)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if not given.json:
        print(f"\n{table(rows)}")
    return 1 if broken or any(row.is_missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
