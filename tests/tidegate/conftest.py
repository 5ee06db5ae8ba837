"""A folder `/home` that exists only as a mapping, and a parse context for readers of manifests."""

import pytest

from tidegate.manifest.builder import ParseContext
from tidegate.schema.files import Found, NamedFiles

FILES = ("resnet50.onnx", "iris.joblib", "handler.py", "server.py", "warmup.json", "token.txt", "bin/python")
THERE = {f"/home/{name}": Found.FILE for name in FILES} | {
    "/home": Found.FOLDER,
    "/home/weights": Found.FOLDER,
    "/home/locked.txt": Found.UNREADABLE,
    "/home/bert": Found.FOLDER,
    "/home/bert/config.json": Found.FILE,
    "/home/repository": Found.FOLDER,
    "/home/repository/double": Found.FOLDER,
    "/home/repository/double/config.pbtxt": Found.FILE,
    "/home/repository/triple": Found.FOLDER,
    "/home/repository/triple/1": Found.FOLDER,
    "/home/repository/README.md": Found.FILE,
}


@pytest.fixture
def context() -> ParseContext:
    return ParseContext(
        base="/home",
        policies=("kpa", "smif", "tide"),
        accelerators={"t4": "emulated", "v100": "emulated", "h100": "nvidia", "cpu-1core": "cpu"},
        files=NamedFiles(THERE),
    )
