"""Checks an installed wheel: ``python -m tests.support.installed FOLDER`` (of ``pip install --target FOLDER``).

It brings one name, ``tidegate``, and plain files. It works beside files that have the names of our top-level folders,
as a developer's project may have them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("activator", "autoscaler", "control", "deploy", "gateway", "loadgen", "queue_proxy", "traffic")
SCRIPT = """
import sys
sys.path.insert(0, ".")
import tidegate.control.cli.app, tidegate.control.main, tidegate.gateway.main
import tidegate.loadgen, tidegate.queue_proxy.main
print(tidegate.__file__)
"""


def main(site: Path) -> None:
    brought = sorted(path.name for path in site.iterdir() if path.suffix != ".dist-info" and path.name != "bin")
    if brought != ["tidegate"]:
        raise SystemExit(f"the wheel brings {', '.join(brought)}; expected tidegate alone")
    links = sorted(path.name for path in (site / "tidegate").rglob("*") if path.is_symlink())
    missing = [name for name in NAMES if not (site / "tidegate" / name / "__init__.py").is_file()]
    if links or missing:
        raise SystemExit(
            f"below tidegate: links {links}, missing {missing}; expected plain folders, {', '.join(NAMES)}"
        )
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            (Path(folder) / f"{name}.py").write_text("raise ImportError('a file of the developer was imported')\n")
        environment = {**os.environ, "PYTHONPATH": str(site)}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT], cwd=folder, env=environment, check=True, capture_output=True
        )
        if not Path(os.fsdecode(run.stdout).strip()).is_relative_to(site):
            raise SystemExit(f"imported {os.fsdecode(run.stdout).strip()}; expected a file below {site}")
        subprocess.run(
            [str(site / "bin" / "tidegate"), "--version"],
            cwd=folder,
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    sys.stdout.write("one installed name: tidegate\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
