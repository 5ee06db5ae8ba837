"""The Python SDK against a deployment, as its page describes it."""

import asyncio
import inspect
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment, places
from tidegate import ApiError, AsyncTidegate, InvokeError, NotRunningError, Tidegate

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("sdk")
    with deployment(folder, *places(folder, 3)) as made:
        made.up()
        yield made


def test_it_finds_the_deployment_as_the_command_line_does(world: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_STATE", str(world.state.root))
    with Tidegate() as tidegate:
        assert tidegate.status().state_directory == str(world.state.root)
    monkeypatch.delenv("TIDEGATE_STATE")
    (world.folder / "tidegate.toml").write_text('[state]\ndirectory = "state"\n')
    monkeypatch.chdir(world.folder)
    with Tidegate() as tidegate:
        assert tidegate.status().state_directory == str(world.state.root)
    (world.folder / "tidegate.toml").unlink()
    monkeypatch.setenv("TIDEGATE_STATE", str(world.folder / "none"))
    with pytest.raises(NotRunningError, match="none"):
        Tidegate()


def test_a_class_is_deployed_with_numbers_called_and_explained(world: Deployment) -> None:
    with Tidegate(state=world.state.root) as tidegate:
        deployed = tidegate.deploy_file(
            world.handler(), latency="2s", max_scale=2, scale_to_zero_after=timedelta(minutes=5), wait=True
        )
        assert [each.name for each in deployed.functions] == ["echo"]
        assert tidegate.invoke("echo", REQUEST)["outputs"][0]["data"] == [2.0, 4.0]
        array = np.array([[1.0, 2.0]], np.float32)
        tensor = {"name": "x", "shape": array.shape, "datatype": "FP32", "data": array}
        assert tidegate.invoke("echo", {"inputs": [tensor]})["outputs"][0]["data"] == [2.0, 4.0]
        assert tidegate.explain("echo").summary[0].startswith("1 replica")
        assert "tidegate.dev/max-scale: '2'" in tidegate.manifest("echo").manifest
        with pytest.raises(InvokeError) as raised:
            tidegate.invoke("echo", {"inputs": []})
        assert raised.value.status == 400


def test_faults_of_a_deploy_name_arguments_and_not_flags(world: Deployment) -> None:
    with Tidegate(state=world.state.root) as tidegate:
        with pytest.raises(ApiError) as raised:
            tidegate.deploy_file(world.handler(), latency="soon", max_scale=-1, annotations={"policy.no": 1})
        message = str(raised.value)
    assert "latency: got " in message
    assert "max_scale: got " in message
    assert "annotations['policy.no']: got " in message
    assert "--" not in message
    assert {each.where for each in raised.value.detail.faults} >= {"latency", "max_scale"}


def test_the_twin_for_asyncio(world: Deployment) -> None:
    async def story() -> None:
        async with AsyncTidegate(state=world.state.root) as tidegate:
            deployed = await tidegate.deploy_file(world.handler(name="twin"), max_scale=1, wait=True)
            assert deployed.functions[0].name == "twin"
            answers = await asyncio.gather(*(tidegate.invoke("twin", REQUEST) for _ in range(20)))
            assert all(each["outputs"][0]["data"] == [2.0, 4.0] for each in answers)
            async for view in tidegate.watch("twin"):
                assert view.name == "twin"
                break
            lines = [each["line"] async for each in tidegate.logs("twin")]
            assert "echo is loaded" in lines
            await tidegate.delete("twin")
            with pytest.raises(ApiError, match="twin"):
                await tidegate.function("twin")

    asyncio.run(story())


def test_both_have_the_same_documented_methods() -> None:
    def public(kind: type) -> dict[str, object]:
        return {name: each for name, each in vars(kind).items() if not name.startswith("_") and inspect.isroutine(each)}

    ours, twin = public(Tidegate), public(AsyncTidegate)
    assert ours.keys() - {"local", "trust", "for_streams"} == twin.keys() - {"connect"}
    undocumented = [name for kind in (ours, twin) for name, each in kind.items() if not inspect.getdoc(each)]
    assert not undocumented
