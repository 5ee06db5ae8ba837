"""A folder `/home` that exists only as a mapping, and a parse context for readers of manifests."""

import pytest

from tidegate.manifest.builder import ParseContext
from tidegate.schema.files import Found, NamedFiles

FILES = ("resnet50.onnx", "handler.py", "server.py", "warmup.json", "token.txt", "bin/python")
THERE = {f"/home/{name}": Found.FILE for name in FILES} | {
    "/home": Found.FOLDER,
    "/home/weights": Found.FOLDER,
    "/home/locked.txt": Found.UNREADABLE,
}


@pytest.fixture
def context() -> ParseContext:
    return ParseContext(
        base="/home",
        policies=("kpa", "smif"),
        accelerators={"t4": "emulated", "v100": "emulated", "h100": "nvidia", "cpu-1core": "cpu"},
        files=NamedFiles(THERE),
    )
