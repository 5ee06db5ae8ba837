"""A model repository: each kind of accelerator runs the form that is stored for it, and both answer alike."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.repository.prepare import prepare
from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("repository")
    prepare(folder)
    with deployment(folder, "--accelerators-file", str(folder / "accelerators.yaml")) as made:
        made.up()
        yield made


def test_each_kind_runs_its_own_form_and_the_answers_agree(world: Deployment) -> None:
    said = world.cli("deploy", "manifest.yaml", "--min-scale", "2")
    assert "cpu-large runs cpu-large/fp32/b4: it has no int8 for a batch of 4" in said.stdout + said.stderr
    world.until_replicas(2, name="magika-stored")
    revision = world.status("magika-stored")["revisions"][0]
    assert {each["accelerator"]: each["stored"] for each in revision["groups"]} == {
        "cpu-small": "cpu-small/int8/b4",
        "cpu-large": "cpu-large/fp32/b4",
    }
    assert "cpu-small runs the stored form cpu-small/int8/b4" in world.cli("status", "magika-stored").stdout
    data = list(Path(__file__).read_bytes()[:2048].ljust(2048))
    body = {"inputs": [{"name": "bytes", "shape": [1, 2048], "datatype": "INT32", "data": data}]}
    scores = {}
    for _ in range(8):  # equal groups: both serve some
        answer = httpx.post(
            f"{world.gateway}/v2/models/magika-stored/infer", json=body, timeout=60, trust_env=False, verify=False
        )
        (output,) = answer.json()["outputs"]
        best = max(output["data"])
        scores[best] = output["data"].index(best)
    assert len(scores) == 2, "two forms give two scores"
    assert len(set(scores.values())) == 1, "and the same label"


def test_a_form_that_is_not_stored_is_refused_with_what_there_is(world: Deployment) -> None:
    said = world.cli("deploy", "models", "--dnn-model", "magika", "--infer-batch-size", "2", code=2)
    assert "it has cpu-large/fp32/b4, cpu-small/int8/b4" in said.stderr + said.stdout
