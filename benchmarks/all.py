"""Every benchmark, one after the other: one JSON line per result. ``make bench`` runs this.

    python -m benchmarks.all [--smoke]

``--smoke`` runs each as short as it goes, to see that it still works; its figures are not meant to be quoted.
"""

import argparse
import shutil
import subprocess
import sys
import time

# (module, arguments in full, arguments of a smoke run)
BENCHMARKS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("benchmarks.start_up", (), ("--runs", "2")),
    ("benchmarks.cold_start", ("--starts", "100"), ("--starts", "3")),
    ("benchmarks.zero_cycles", (), ("--cycles", "1")),
    ("benchmarks.macro.proxy_bench", (), ("--seconds", "1", "--rounds", "1")),
    ("benchmarks.micro.engine_bench", (), ("--rounds", "2")),
    ("benchmarks.micro.room_bench", (), ()),
    ("benchmarks.micro.slots_sim", (), ()),
    ("benchmarks.micro.decider_bench", (), ()),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    for tool in ("nginx", "wrk"):
        if shutil.which(tool) is None:
            print(
                f"{tool} is missing (Debian: apt-get install nginx wrk): its comparisons are left out", file=sys.stderr
            )
    failed = []
    for module, full, smoke in BENCHMARKS:
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", module, *(smoke if arguments.smoke else full)], check=False)
        print(f"{module}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        if done.returncode:
            failed.append(module)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
