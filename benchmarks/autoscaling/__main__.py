"""Live experiments on scaling and weights, against a real `tidegate up`: is what the papers promise kept?

    python -m benchmarks.autoscaling [NAME ...] [--smoke] [--seconds N] [--seed N] [--trace FILE] [--out FOLDER]

Without a name all of them run. One JSON line per figure, with what was required of it; plots and timelines lie under
``--out``. ``--smoke`` runs each for seconds, to see that it works: bounds that need longer are shown and not judged.
``--seconds`` is the length of the loads of ``twitter`` and ``twitter_real`` (full: 600), and nothing of them is judged.
The exit code is 1 where a judged bound is missed. docs/operate/benchmarks.md says what each shows.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import live_runs
from benchmarks.autoscaling import age, batches, flip, mu, sizes, sm3, steady, three_kinds, twitter
from benchmarks.autoscaling.results import Judge, Row, table
from benchmarks.autoscaling.setup import Setup

EXPERIMENTS: dict[str, Callable[[Setup, Judge], Iterator[Row]]] = {
    "sm3": sm3.run,
    "mu": mu.run,
    "steady": steady.run,
    "twitter": twitter.run,
    "twitter_real": twitter.run_real,
    "batches": batches.run,
    "three_kinds": three_kinds.run,
    "sizes": sizes.run,
    "age": age.run,
    "flip": flip.run,
}
SLICED = ("twitter", "twitter_real")
"""Experiments whose length is an option."""
LEAST_S = 20
TRACE = Path(__file__).resolve().parent / "data" / "twitter-40min.txt.gz"


def main() -> int:
    parser = live_runs.parser(__doc__, EXPERIMENTS, seed=20)
    parser.add_argument("--trace", type=Path, default=TRACE, help="requests per second, one whole number a line")
    parser.add_argument("--out", type=Path, default=Path("build/autoscaling"))
    parser.add_argument("--seconds", type=int, help=f"length of the loads of {' and '.join(SLICED)}")
    options = live_runs.given(parser, EXPERIMENTS)
    if options.seconds is not None and not (set(options.names) <= set(SLICED) and options.seconds >= LEAST_S):
        parser.error(f"--seconds N is for {' and '.join(SLICED)}, from {LEAST_S} s on")
    is_short = options.smoke or options.seconds is not None
    setup = Setup(smoke=options.smoke, seed=options.seed, out=options.out, trace=options.trace, seconds=options.seconds)
    return live_runs.play(options, lambda name: EXPERIMENTS[name](setup, Judge(name, is_short)), table)


if __name__ == "__main__":
    sys.exit(main())
