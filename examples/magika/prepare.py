"""Prepares the magika example: content-type identification with the ONNX model inside the ``magika`` package.

    python examples/magika/prepare.py [DIRECTORY]        prints the path of the manifest

Writes the model, a manifest and a request made of a real file into DIRECTORY (default: a folder in the cache). The
package's own code is neither run nor imported: the model is a file in it.

Everything that a client needs is here too, written for this example: what the model wants to see of a file, and what
its answers mean. The numbers come from the model's own ``config.min.json``. The model sees 1024 tokens of a file's
beginning and 1024 of its end; a token is a byte, or 256 where the file has no more of them. White space is stripped
at the outer edges, since it says nothing about the content: on the left of the first block (4096 bytes), on the right
of the last one. The beginning is padded behind, the end in front.
"""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def find_model() -> Path:
    """The newest model of the installed package. Raises FileNotFoundError."""
    spec = importlib.util.find_spec("magika")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package `magika` is not installed: pip install 'tidegate[examples,onnx]'")
    models = sorted(Path(spec.origin).parent.glob("models/*/model.onnx"))
    if not models:
        raise FileNotFoundError(f"there is no models/*/model.onnx in {Path(spec.origin).parent}")
    return models[-1]


def prepare(directory: str | Path) -> Path:
    """Writes ``manifest.yaml``, ``model.onnx`` and ``request.json`` into ``directory``; returns the manifest's path."""
    folder = Path(directory).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(find_model(), folder / "model.onnx")
    manifest = folder / "manifest.yaml"
    if manifest != HERE / "manifest.yaml":
        shutil.copyfile(HERE / "manifest.yaml", manifest)
    row = features_of(Path(__file__).read_bytes(), own_layout())
    (folder / "request.json").write_text(json.dumps(request_of([row] if row is not None else [])))
    return manifest


@dataclass(frozen=True)
class Layout:
    """Sizes in bytes, and the labels of the model."""

    begin: int
    end: int
    block: int
    padding: int
    least: int
    """Files with fewer bytes than this, white space apart, are too short for the model."""
    labels: tuple[str, ...]

    @property
    def width(self) -> int:
        return self.begin + self.end


def own_layout() -> Layout:
    """The layout of the installed model."""
    return read_layout(find_model().parent / "config.min.json")


def read_layout(config: Path) -> Layout:
    """The layout in a model's configuration. Raises ValueError for one that this code does not know."""
    fields = json.loads(config.read_text())
    if fields["mid_size"] or fields["use_inputs_at_offsets"]:
        raise ValueError(f"{config}: this model also looks at the middle of a file")
    return Layout(
        begin=fields["beg_size"],
        end=fields["end_size"],
        block=fields["block_size"],
        padding=fields["padding_token"],
        least=fields["min_file_size_for_dl"],
        labels=tuple(fields["target_labels_space"]),
    )


def features_of(content: bytes, layout: Layout) -> list[int] | None:
    """One row of the input ``bytes``; None for a content that is too short for the model."""
    begin = content[: layout.block].lstrip()[: layout.begin]
    end = content[-layout.block :].rstrip()[-layout.end :]
    if len(content) < layout.least or len(begin) < layout.least:
        return None
    row = list(begin) + [layout.padding] * (layout.begin - len(begin))
    return row + [layout.padding] * (layout.end - len(end)) + list(end)


def request_of(rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A V2 inference request with one row per file."""
    flat = [token for row in rows for token in row]
    return {"inputs": [{"name": "bytes", "datatype": "INT32", "shape": [len(rows), len(rows[0])], "data": flat}]}


def labels_of(answer: dict[str, Any], layout: Layout) -> list[tuple[str, float]]:
    """The best label and its score for every row of a V2 answer."""
    (scores,) = (output for output in answer["outputs"] if output["name"] == "target_label")
    width = scores["shape"][1]
    rows = [scores["data"][at : at + width] for at in range(0, len(scores["data"]), width)]
    return [(layout.labels[row.index(max(row))], max(row)) for row in rows]


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/tidegate/magika``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "magika"


if __name__ == "__main__":
    try:
        print(prepare(sys.argv[1] if len(sys.argv) > 1 else cache_directory()))
    except FileNotFoundError as error:
        sys.exit(str(error))
