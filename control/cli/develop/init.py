"""``tidegate init``: a manifest with comments, to begin with."""

from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.control.cli.common import JsonOption, guarded, print_json, say
from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.annotations import ANNOTATION, PREFIX
from tidegate.manifest.formats import KNOWN_FILES, by_suffix
from tidegate.manifest.spec import API_VERSION, KIND, SPEC

SHOWN: Final = ("latency", "percentile", "min-scale", "max-scale", "scale-to-zero-after", "canary-steps")
"""Annotations that a new manifest shows."""
SHOWN_SPEC: Final = ("protocol", "concurrency", "timeout", "queue.requests", "limits.body-bytes")
"""Keys of ``spec`` that a new manifest shows."""
MANIFEST: Final = Path("function.yaml")
EXAMPLE: Final = '''class Model:
    inputs = {"x": ("FP32", [-1, 2])}  # checked, and shown as metadata
    outputs = {"y": ("FP32", [-1])}
    arrays = "plain"  # lists; without this line numpy arrays, where numpy is installed

    def load(self):
        """Runs once, before the first request."""
        self.weights = [1.0, 1.0]

    def predict(self, inputs):
        """Gets arrays by name, one row per inference, and returns arrays by name."""
        return {"y": [sum(a * b for a, b in zip(row, self.weights)) for row in inputs["x"]]}
'''


def init(
    file: Annotated[
        str, typer.Argument(help="What it serves: file.py[:Class], or a model (model.onnx, model.joblib, ...).")
    ] = "handler.py",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The manifest.")] = Path(
        "function.yaml"
    ),
    name: Annotated[str | None, typer.Option("--name", help="Name of the function (default: the file's).")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a manifest that is there.")] = False,
    json: JsonOption = False,
) -> None:
    """Write a manifest with comments; where handler.py is missing, an example class too."""
    from tidegate.control.sources import read_source

    written = []
    if output.exists() and not force:
        raise InvalidInputError("init", [Fault("--output", f"{output} (it exists)", "a new file, or --force as well")])
    if file == "handler.py" and not Path(file).exists():
        Path(file).write_text(EXAMPLE, encoding="utf-8")
        written.append(file)
    _, _, target = read_source(file, name)
    if target == file and by_suffix(file) is None and not Path(file).is_dir() and ".py:" not in file:
        raise InvalidInputError("init", [Fault("FILE", file, f"file.py, file.py:CLASS, a folder, or {KNOWN_FILES}")])
    output.write_text(manifest(target, name), encoding="utf-8")
    written.append(str(output))
    if json:
        print_json({"written": written})
    else:
        say(f"wrote {' and '.join(written)}; deploy with `tidegate deploy {output}`")


def register(app: typer.Typer) -> None:
    app.command("init")(guarded(init))


def manifest(target: str, name: str | None) -> str:
    """Returns the manifest of ``file.py:Class`` or of a model. Values that are commented out are the defaults."""
    from tidegate.deploy.builder import name_of

    is_handler = ".py:" in target
    kind, file = ("handler", target.rpartition(":")[0]) if is_handler else ("model", target)
    lines = [
        "# A function. Deploy it: tidegate deploy THIS_FILE. Every key: docs/use/annotations.md.",
        "# A line that begins with # and a key shows its default; remove the # to change it.",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "metadata:",
        f"  name: {name or name_of(file)}",
        "  annotations:",
        f'    {PREFIX}task-class: "latency-critical"  # or throughput-oriented',
    ]
    for key in SHOWN:
        row = ANNOTATION[key]
        lines += [f"    # {row.description}", f'    # {PREFIX}{key}: "{row.default}"']
    lines += ["spec:", "  server:", f"    {kind}: {_quoted(target)}"]
    groups = set()
    for row in SPEC:
        if row.key not in SHOWN_SPEC:
            continue
        group, dot, key = row.key.rpartition(".")
        lines.append(f"  # {row.description} ({row.kind.allowed})")
        if dot and group not in groups:
            groups.add(group)
            lines.append(f"  # {group}:")
        lines.append(f"  # {'  ' if dot else ''}{key}: {row.default}")
    if is_handler:
        lines += ["  # Arguments of the class, and variables of its process.", "  # args: {factor: 2}"]
        lines += ["  # env: {COLOUR: blue}"]
    lines += ["  # The interpreter; `tidegate deploy --requirements FILE` makes one with what a file lists."]
    lines += ["  # python: .venv/bin/python"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    from tidegate.schema.yaml_nodes import dump

    return dump(text).removesuffix("...\n").strip()
