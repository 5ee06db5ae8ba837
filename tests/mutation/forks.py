"""Runs pytest in forks of a process that has imported what the tests need: ``python -m tests.mutation.forks``.

It reads one JSON object per line: ``runs``, each the arguments of one pytest, and ``limit_s``, the processor seconds
that each may take. It prints one: whether a run failed, the processor seconds of all, and what pytest printed. Every
run has a process of its own, so that it imports the tree as it then is. After the first line the process imports what
modules of other projects its runs have loaded.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    known = False
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryFile("w+") as loaded, tempfile.TemporaryFile("w+") as shown:
            # The first run keeps bytecode of tests and tree. A mutant's files change within a second: none is written.
            sys.dont_write_bytecode = known
            answer = run_all(asked["runs"], asked["limit_s"], shown, None if known else loaded)
            if not known:
                loaded.seek(0)
                import_all(loaded.read().split())
                known = True
            shown.seek(0)
            print(json.dumps({**answer, "shown": shown.read()}), file=answers, flush=True)


def run_all(runs: Sequence[Sequence[str]], limit_s: int, shown: IO[str], loaded: IO[str] | None) -> dict[str, Any]:
    """Runs one after another until one fails."""
    spent_s = 0.0
    for arguments in runs:
        child = os.fork()
        if child == 0:
            run(arguments, limit_s, shown, loaded)
        _, status, usage = os.wait4(child, 0)
        spent_s += usage.ru_utime + usage.ru_stime
        if status:
            return {"failed": True, "spent_s": spent_s}
    return {"failed": False, "spent_s": spent_s}


def run(arguments: Sequence[str], limit_s: int, shown: IO[str], loaded: IO[str] | None) -> None:
    """Becomes pytest, and never returns."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(shown.fileno(), 1)
        os.dup2(shown.fileno(), 2)
        import pytest

        found = pytest.main(list(arguments), plugins=[Hasty()])
        code = 0 if found == pytest.ExitCode.NO_TESTS_COLLECTED else int(found)
        if loaded is not None:
            loaded.write(" ".join(foreign()))
            loaded.flush()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


TEST_CPU_S: Final = 10.0
"""Processor seconds of one test, or of the collection, after which the process ends: it loops."""


class Hasty:
    """Runs the searches of hypothesis last, as an example finds most mutants in a fraction of their time. Ends the
    process in a test that loops."""

    def pytest_configure(self) -> None:
        self.pytest_runtest_logstart()

    def pytest_runtest_logstart(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, TEST_CPU_S)  # Nothing handles its signal, which ends the process.

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))


def foreign() -> list[str]:
    """Names the loaded modules that are not of this tree."""
    here = str(Path.cwd())
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if not (getattr(module, "__file__", None) or here).startswith(here)
    )


def import_all(names: Sequence[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


if __name__ == "__main__":
    main()
