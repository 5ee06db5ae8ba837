"""A Triton model repository, deployed as a folder, served by the real Triton; and without one, the reason."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.live import triton
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120), pytest.mark.needs(tool="triton")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("triton")
    triton.repository(folder)
    with deployment(folder, *places(folder, 2)) as made:
        made.up()
        yield made


def test_a_repository_is_served_by_the_users_own_triton(world: Deployment) -> None:
    path = f"{triton.BINARY.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = {**triton.environment(), "PATH": path}
    flags = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    world.cli("deploy", "repository", "--name", "shop", *flags)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
    answer = httpx.post(f"{world.gateway}/v2/models/double/infer", json=body, timeout=30, trust_env=False, verify=False)
    assert answer.json()["outputs"][0]["data"] == [2.0, 4.0]


def test_without_triton_the_deploy_says_so(world: Deployment) -> None:
    world.cli("delete", "shop")
    done = world.cli("deploy", "repository", "--name", "none", "--env", "PATH=/nowhere", code=1)
    assert "a Triton repository needs Triton: no tritonserver is on PATH" in done.stderr
