"""Runs the targets with atheris: ``python -m tests.fuzz.main SECONDS FOLDER``, exit code 1 on a finding.

The corpus begins with the golden vectors; inputs that broke a target are written to ``FOLDER``.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

INPUT_BYTES = 6000


def main(arguments: list[str]) -> int:
    """Runs all targets, each in a process of its own (a fuzzer never returns); or one, in this process."""
    if len(arguments) == 4 and arguments[3] == "--here":
        _fuzz(arguments[0], arguments[1], Path(arguments[2]))
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m tests.fuzz.main SECONDS FOLDER\n")
        return 2
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write("atheris is not installed\n")
        return 2
    from tests.fuzz.targets import TARGETS

    seconds, folder = arguments
    Path(folder).mkdir(parents=True, exist_ok=True)
    failed = [name for name in TARGETS if not _run(name, seconds, folder)]
    sys.stdout.write(f"findings: {', '.join(failed) or 'none'}\n")
    return 1 if failed else 0


def _run(name: str, seconds: str, folder: str) -> bool:
    """Returns whether the target held."""
    command = [sys.executable, "-m", "tests.fuzz.main", name, seconds, folder, "--here"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = (done.stdout + done.stderr).splitlines()
    runs = [line for line in output if "number_of_executed_units" in line]
    sys.stdout.write(f"{name}: {runs[-1].rpartition(':')[2].strip() if runs else 'an unknown number of'} runs, ")
    sys.stdout.write("no finding\n" if done.returncode == 0 else "A FINDING\n")
    if done.returncode:
        sys.stdout.write("\n".join(output[-60:]) + "\n")
    return done.returncode == 0


def _fuzz(name: str, seconds: str, folder: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["tidegate"]):
        from tests.fuzz.targets import TARGETS, seeds
    with tempfile.TemporaryDirectory(prefix="fuzz-") as corpus:
        for number, seed in enumerate(seeds(name)):
            (Path(corpus) / f"{number:05d}").write_bytes(seed)
        options = [
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES}",
            f"-artifact_prefix={folder}/{name}-",
            "-print_final_stats=1",
            "-timeout=20",
        ]
        atheris.Setup([sys.argv[0], *options, corpus], TARGETS[name])
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
