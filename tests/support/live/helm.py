"""Helm, where it is: on the search path, or the program that ``HELM`` names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def program() -> str | None:
    """Returns the program; None if there is none."""
    return shutil.which(os.environ.get("HELM", "helm"))


def lacking() -> str:
    """Names what is missing."""
    return "" if program() else "helm (or HELM)"


def helm(*words: str, home: Path, kubeconfig: Path | None = None, code: int | None = 0) -> str:
    """Runs Helm with a home of its own; returns what it printed. ``code`` None: any exit."""
    found = program()
    assert found is not None, lacking()
    config = {} if kubeconfig is None else {"KUBECONFIG": str(kubeconfig)}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), **config}
    done = subprocess.run(
        [found, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def set_flags(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Returns values as ``--set-json`` flags."""
    return [f"--set-json={key}={json.dumps(value)}" for key, value in values.items()]


def main() -> int:
    """Says that it is missing, if it is."""
    if program():
        return 0
    sys.stdout.write(f"NO HELM: {lacking()} is missing, so the chart was not installed by it.\n")
    return 3


if __name__ == "__main__":
    sys.exit(main())
