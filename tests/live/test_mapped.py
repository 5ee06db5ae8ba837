"""Replicas of one ONNX file share the pages of its weights: read from the system's own account of their memory."""

import hashlib
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment, deployment
from tests.tidegate.runtime.conftest import write_product
from tidegate.runtime.formats.mapped import LEAST_BYTES, WEIGHTS

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="smaps is Linux's"),
]

WIDTH = 2048
KINDS = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 2, memory: 4Gi}]"

MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: product
  annotations: {tidegate.dev/policy: kpa, tidegate.dev/min-scale: "2"}
spec: {server: {model: product.onnx}}
"""


def servers(world: Deployment) -> list[int]:
    return [pid for name, pid in world.living().items() if name.startswith("product-") and name.endswith(".server")]


def shared_weights(pid: int) -> int:
    """Returns the bytes of mapped weights in a process that another one has as well."""
    total, is_weights = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-", line):
            is_weights = line.endswith(WEIGHTS)
        elif is_weights and line.startswith("Shared_"):
            total += int(line.split()[1]) * 1024
    return total


def test_two_replicas_have_the_weights_once(tmp_path: Path) -> None:
    write_product(tmp_path / "product.onnx", size=WIDTH, products=1)
    assert (tmp_path / "product.onnx").stat().st_size >= LEAST_BYTES
    (tmp_path / "kinds.yaml").write_text(KINDS)
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "kinds.yaml")) as world:
        world.up()
        (tmp_path / "product.yaml").write_text(MANIFEST)
        world.cli("deploy", str(tmp_path / "product.yaml"))
        copies = tmp_path / "state" / "copies"
        world.until(lambda: list(copies.glob(f"*.mapped/*-{12 * '?'}/{WEIGHTS}")), 30.0, "the mapped form")
        world.until(lambda: len(servers(world)) == 2, 30.0, "two replicas")
        before = set(servers(world))
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        world.until(lambda: len(set(servers(world)) - before) == 2, 30.0, "two others")
        world.until(
            lambda: all(shared_weights(pid) >= LEAST_BYTES // 2 for pid in servers(world)), 30.0, "shared pages"
        )


def test_a_folder_that_cannot_be_made_stops_no_start(tmp_path: Path) -> None:
    write_product(tmp_path / "product.onnx", size=WIDTH, products=1)
    digest = hashlib.sha256((tmp_path / "product.onnx").read_bytes()).hexdigest()
    with deployment(tmp_path) as world:
        world.up()
        blocked = tmp_path / "state" / "copies" / f"{digest}.product.mapped"
        blocked.write_text("not a folder")
        world.cli("deploy", str(tmp_path / "product.onnx"), "--name", "product")
        assert blocked.is_file() and servers(world), "it is ready, from the file itself"
