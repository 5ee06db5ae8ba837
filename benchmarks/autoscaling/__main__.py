"""Live experiments on scaling and weights, against a real `tidegate up`: is what the papers promise kept?

    python -m benchmarks.autoscaling [NAME ...] [--smoke] [--json] [--seed N] [--trace FILE] [--out FOLDER]

Without a name all of them run. One JSON line per figure, with what was required of it; plots and timelines lie under
``--out``. ``--smoke`` runs each for seconds, to see that it works: bounds that need longer are shown and not judged.
The exit code is 1 where a judged bound is missed. docs/operate/benchmarks.md says what each shows.
"""

import sys
from pathlib import Path
from types import ModuleType

from benchmarks import live_runs
from benchmarks.autoscaling import age, batches, flip, mu, sizes, sm3, steady, three_kinds, twitter
from benchmarks.autoscaling.results import Judge, table
from benchmarks.autoscaling.setup import Setup

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
TRACE = Path(__file__).resolve().parent / "data" / "twitter-40min.txt.gz"


def main() -> int:
    parser = live_runs.parser(__doc__, EXPERIMENTS, seed=20)
    parser.add_argument("--trace", type=Path, default=TRACE, help="requests per second, one whole number a line")
    parser.add_argument("--out", type=Path, default=Path("build/autoscaling"))
    options = live_runs.given(parser, EXPERIMENTS)
    setup = Setup(smoke=options.smoke, seed=options.seed, out=options.out, trace=options.trace)
    return live_runs.play(options, lambda name: EXPERIMENTS[name].run(setup, Judge(name, options.smoke)), table)


if __name__ == "__main__":
    sys.exit(main())
