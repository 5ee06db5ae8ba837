"""The laboratory's experiments with real processes, beside what the simulator says of them.

    python -m benchmarks.laboratory [agree|sm2|sm3|sm5|th1 ...] [--smoke] [--json] [--seed N]

Without a name all of them run. One JSON line per figure, live and simulated side by side, with what was required of
the live one; a table at the end. ``--smoke`` runs each for seconds, to see that it works: bounds that need longer are
shown and not judged. The exit code is 1 where a judged bound is missed. docs/benchmarks.md says what each shows.
"""

import argparse
import json
import os
import signal
import sys
import time
from types import ModuleType

from benchmarks.laboratory import agree, sm2, sm3, sm5, th1
from benchmarks.laboratory.rows import Row, table
from benchmarks.laboratory.setup import Setup
from benchmarks.macro.harness import commit
from control.sdk import ApiError, NotRunningError, StartFailedError

EXPERIMENTS: dict[str, ModuleType] = {each.NAME: each for each in (agree, sm2, sm3, sm5, th1)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true", help="no table at the end")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    unknown = sorted(set(given.names) - EXPERIMENTS.keys())
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    return given


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes that were started end too
    setup = Setup(smoke=given.smoke, seed=given.seed)
    origin = {"commit": commit(), "cores": len(os.sched_getaffinity(0)), "smoke": given.smoke}
    rows: list[Row] = []
    broken = []
    for name in given.names or EXPERIMENTS:
        began = time.monotonic()
        try:
            for each in EXPERIMENTS[name].run(setup):
                if isinstance(each, Row):
                    rows.append(each)
                record = each.record() if isinstance(each, Row) else dict(each)
                print(json.dumps(record | origin | {"load_average": round(os.getloadavg()[0], 1)}), flush=True)
        except (RuntimeError, OSError, ApiError, NotRunningError, StartFailedError) as error:
            broken.append(name)
            print(f"{name}: FAILED: {error}", file=sys.stderr)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if not given.json:
        print(f"\n{table(rows)}")
    return 1 if broken or any(row.is_missed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
