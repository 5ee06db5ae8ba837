"""A real control plane with a fake node and a control process on it, for the tests that need a cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live.cluster import Node, control_process
from tests.support.live.control_plane import ControlPlane, control_plane
from tests.support.live.deployment import Deployment


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as found:
        yield found


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    with Node(plane).running() as found:
        yield found


@pytest.fixture
def live(plane: ControlPlane, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with control_process(plane, node, tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.folder / "kubeconfig"))
        yield found
