"""A decision log in a file, as live ones are written and ``tidegate simulate --log`` writes them: JSON lines."""

from pathlib import Path

from tidegate.records.codec import CodecError, decode
from tidegate.records.decision import Decision
from tidegate.schema.yaml_nodes import Faults


def read(path: Path, function: str) -> list[Decision]:
    """The decisions about a function, in the order of the file. Raises InvalidInputError with every line that is none,
    and where there is none about the function."""
    faults = Faults(str(path))
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        faults.report("--log", error.strerror or str(error), "a file that can be read")
        raise faults.error() from error
    found: list[Decision] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(decode(line, Decision))
        except CodecError as error:
            faults.report("line", str(error), "a decision as JSON", number)
    faults.raise_any()
    about = [each for each in found if each.function == function]
    if not about:
        known = ", ".join(sorted({each.function for each in found})) or "none"
        faults.add("NAME", function, f"a function that the log is about: {known}")
        faults.raise_any()
    return about
