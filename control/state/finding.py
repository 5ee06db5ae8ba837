"""Finds the state directory of the deployment that a command or a program means."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidegate.control.state.directory import default_directory
from tidegate.errors import Fault, InvalidInputError

VARIABLE: Final = "TIDEGATE_STATE"
SETTINGS_FILE: Final = "tidegate.toml"


def find_directory(environ: Mapping[str, str], folder: Path, *, given: str | Path | None = None) -> Path:
    """Returns the state directory: the one given, else ``$TIDEGATE_STATE``, else ``[state] directory`` of
    ``tidegate.toml`` in ``folder``, else the user's. Raises InvalidInputError if that file has faults."""
    named = given or environ.get(VARIABLE) or _in_settings(folder) or default_directory(environ)
    return Path(named).expanduser()


def _in_settings(folder: Path) -> str | None:
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return None
    from tidegate.settings import read

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(
            SETTINGS_FILE, [Fault("file", SETTINGS_FILE, "a TOML file that can be read")]
        ) from error
    return read(text, source=SETTINGS_FILE, base=str(folder)).state.directory
