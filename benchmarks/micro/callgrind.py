"""Counts instructions under callgrind, which no other program disturbs. Needs ``valgrind``."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

CALLGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")


def counted(module: str, words: Sequence[str], rounds: tuple[int, int]) -> float:
    """Returns the instructions of one more round of a module: the difference between a short and a long run, which
    ``--rounds`` says. Raises RuntimeError if valgrind cannot count them."""
    short, long = (_instructions(module, [*words, "--rounds", str(each)]) for each in rounds)
    return (long - short) / (rounds[1] - rounds[0])


def _instructions(module: str, words: Sequence[str]) -> int:
    done = subprocess.run(
        [*CALLGRIND, sys.executable, "-m", module, *words],
        env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise RuntimeError(f"callgrind has counted nothing: {done.stderr[-500:]}")
    return int(found[1])
