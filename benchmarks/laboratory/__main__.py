"""The laboratory's experiments with real processes, beside what the simulator says of them.

    python -m benchmarks.laboratory [agree|hs1|sm2|sm3|sm5|th1|tm11|tm12|tm13 ...] [--smoke] [--json] [--seed N]

Without a name all of them run. One JSON line per figure, live and simulated side by side, with what was required of
the live one; a table at the end. ``--smoke`` runs each for seconds, to see that it works: bounds that need longer are
shown and not judged. The exit code is 1 where a judged bound is missed. docs/operate/benchmarks.md has what
each shows.
"""

import sys
from types import ModuleType

from benchmarks import live_runs
from benchmarks.laboratory import agree, hs1, sm2, sm3, sm5, th1, tm11, tm12, tm13
from benchmarks.laboratory.rows import table
from benchmarks.laboratory.setup import Setup

EXPERIMENTS: dict[str, ModuleType] = {each.NAME: each for each in (agree, hs1, sm2, sm3, sm5, th1, tm11, tm12, tm13)}


def main() -> int:
    options = live_runs.given(live_runs.parser(__doc__, EXPERIMENTS, seed=1), EXPERIMENTS)
    setup = Setup(smoke=options.smoke, seed=options.seed)
    return live_runs.play(options, lambda name: EXPERIMENTS[name].run(setup), table)


if __name__ == "__main__":
    sys.exit(main())
