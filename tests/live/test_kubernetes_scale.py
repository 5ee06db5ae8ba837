"""Small versions of the benchmarks of a cluster: many replicas, many Functions."""

import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.kubernetes import functions, replicas
from tests.support.live.control_plane import ControlPlane

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]


def test_replicas_of_some_groups_are_made_once_and_leave_nothing(plane: ControlPlane) -> None:
    """Also when the process is replaced amid its orders."""
    found = asyncio.run(replicas.measure(plane, replicas=24, groups=3))
    assert found["replicas"] == 24
    assert 12 <= found["adopted"] <= 24
    assert 24 <= found["made"] <= 24 + replicas.AT_ONCE


def test_a_restarted_process_has_all_functions_and_rests(plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = os.environ.get("KUBECONFIG")
    try:
        found = asyncio.run(functions.measure(plane, tmp_path, count=40, rest_s=3.0))
    finally:
        os.environ.pop("KUBECONFIG", None)
        if kubeconfig is not None:
            os.environ["KUBECONFIG"] = kubeconfig
    assert found["functions"] == 40, "each has its status, of its newest generation"
    assert found["rest_writes"] == 0
    assert found["rest_calls_per_s"] <= 5.0
