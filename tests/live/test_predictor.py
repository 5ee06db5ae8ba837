"""The predictor beside a real deployment: it dies, requests go on; the control process dies, it goes too."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.live.deployment import deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def predictors(folder: Path) -> list[int]:
    """Ids of the predictors of the deployment in this folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            words = (each / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tidegate.control.predictor.main" in words and any(bytes(folder) in word for word in words):
            found.append(int(each.name))
    return found


def test_requests_go_on_without_the_predictor_and_it_comes_back(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        world.deploy(world.handler(name="a"), "--wait", name="a")
        assert predictors(tmp_path) == [], "there is nothing to predict from"
        (first,) = world.until(
            lambda: world.infer(name="a").status_code == 200 and predictors(tmp_path), 20.0, "a first sample"
        )
        os.kill(first, signal.SIGKILL)
        world.cli("deploy", world.handler(name="b"), "--name", "b", "--initial-scale", "0")
        faults = world.ask("status")["faults"]
        assert any(each.startswith("predictor: ") for each in faults), faults
        assert world.infer(name="a").status_code == 200
        world.cli("deploy", world.handler(name="c"), "--name", "c", "--initial-scale", "0")
        world.until(lambda: predictors(tmp_path) not in ([], [first]), 10.0, "another predictor")
        world.until(lambda: not world.ask("status")["faults"], 20.0, "the fault to end")
        world.kill()
        world.until(lambda: not predictors(tmp_path), 5.0, "the predictor to follow its control process")
    assert predictors(tmp_path) == []
