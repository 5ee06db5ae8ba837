"""Every benchmark, one after the other: one JSON line per result, a table where there are peers. ``make bench``.

    python -m benchmarks.all [--smoke] [--json] [--peer NAME=COMMAND] ...

``--smoke`` runs each as short as it goes, to see that it still works, two at a time; its figures are not meant to be
quoted.
``--json`` leaves the table out; ``--peer`` puts one more proxy beside the others (``benchmarks.macro``).
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

SMOKE_AT_ONCE = 2

# (module, arguments in full, arguments of a smoke run)
BENCHMARKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("benchmarks.start_up", (), ("--runs", "2")),
    ("benchmarks.cold_start", ("--starts", "100"), ("--starts", "3")),
    ("benchmarks.zero_cycles", (), ("--cycles", "1")),
    ("benchmarks.breakdown", (), ("--requests", "20")),
    ("benchmarks.macro", (), ("--smoke",)),
    ("benchmarks.autoscaling", (), ("--smoke",)),
    ("benchmarks.laboratory", (), ("--smoke",)),
    ("benchmarks.micro.engine_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.h2_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.h2_hops_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.gateway_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.tracing_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.sides_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.splice_bench", (), ("--rounds", "2", "--transfers", "50")),
    ("benchmarks.micro.room_bench", (), ()),
    ("benchmarks.micro.openai_bench", (), ()),
    ("benchmarks.micro.load_bench", (), ("--seconds", "1")),
    ("benchmarks.micro.slots_sim", (), ()),
    ("benchmarks.micro.groups_sim", (), ("--requests", "1500")),
    ("benchmarks.micro.affinity_sim", (), ("--seconds", "120")),
    ("benchmarks.micro.bound_bench", ("--trace", "constant"), ("--hours", "0.02", "--trace", "constant")),
    ("benchmarks.micro.themis_bench", (), ("--rounds", "1")),
    ("benchmarks.micro.simulator_bench", (), ("--requests", "20000", "--rounds", "1")),
    ("benchmarks.micro.hetsev_bench", (), ("--instances", "20")),
    ("benchmarks.micro.decider_bench", (), ("--functions", "200", "--ticks", "3")),
    ("benchmarks.micro.round_bench", (), ("--functions", "100", "--rounds", "3")),
    ("benchmarks.micro.scrape_bench", (), ("--functions", "50", "--repeats", "1")),
    ("benchmarks.micro.console_bench", (), ("--functions", "10", "--repeats", "1")),
    ("benchmarks.micro.predictor_bench", (), ("--samples", "200")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    arguments = parser.parse_args()
    tables = ["--json"] * arguments.json
    more = {
        "benchmarks.macro": [word for peer in arguments.peer for word in ("--peer", peer)] + tables,
        "benchmarks.autoscaling": tables,
        "benchmarks.laboratory": tables,
    }

    def run(module: str, words: Sequence[str]) -> bool:
        """Returns whether the benchmark ended with 0. What a smoke run prints comes in one piece at its end."""
        began = time.monotonic()
        command = [sys.executable, "-m", module, *words, *more.get(module, ())]
        done = subprocess.run(command, check=False, capture_output=arguments.smoke, text=True)
        sys.stdout.write(done.stdout or "")
        sys.stdout.flush()
        print(f"{done.stderr or ''}{module}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        return done.returncode == 0

    with ThreadPoolExecutor(SMOKE_AT_ONCE if arguments.smoke else 1) as pool:
        runs = {
            module: pool.submit(run, module, smoke if arguments.smoke else full) for module, full, smoke in BENCHMARKS
        }
    failed = [module for module, each in runs.items() if not each.result()]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
