"""Writes the resources as YAML; ``make docs`` does it.

``python -m tidegate.deploy.kubernetes.resources.main FOLDER``
"""

import sys
from pathlib import Path
from typing import Final

from tidegate.deploy.kubernetes.resources.definitions import definitions, policies
from tidegate.schema.yaml_nodes import dump

_HEAD: Final = "# Made by `make docs` from the tables of tidegate/manifest. Change those, not this file.\n"


def files() -> dict[str, str]:
    """Returns the text of each file by its name."""
    found = {f"{each['spec']['names']['plural']}.yaml": dump(each) for each in definitions()}
    found["annotations.yaml"] = "---\n".join(dump(each) for each in policies())
    return {name: _HEAD + text for name, text in found.items()}


def main() -> None:
    """Writes every file into the folder that is given."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
