"""Cores and batches of what runs, over a whole deployment without processes."""

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import httpx

from tests.support.worlds.api_desk import Desk, at_desk
from tests.support.worlds.control_world import CPU

BATCHED = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: echo}
spec:
  server: {handler: "model.py:Model"}
  batching: {max: 8, delay: 2ms}
"""


def resized(desk: Desk, **body: object) -> Awaitable[httpx.Response]:
    return desk.client.post("/api/v1/functions/echo/resize", json=body)


async def deployed_batched(desk: Desk) -> None:
    (desk.world.folder / "model.py").write_text("class Model: ...\n")
    desk.world.backend.set_accelerators((replace(CPU, cores=2),), (0, 1, 2, 3))
    assert (await desk.deploy(BATCHED, **{"min-scale": "1"})).status_code == 201
    await desk.world.advance(5.0)


def test_running_replicas_get_other_cores_and_batches_and_later_ones_follow(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await deployed_batched(desk)
        answer = await resized(desk, cores=1, max_batch=4)
        (one,) = answer.json()["replicas"]
        assert (one["cores"], one["max_batch"], one["batch_delay_s"], one["refused"]) == (1, 4, 0.002, None)
        (shown,) = (await desk.get("/functions/echo")).json()["revisions"][0]["replicas"]
        assert (shown["cores"], shown["max_batch"]) == (1, 4)
        (first,) = desk.world.backend.replicas()
        await desk.world.backend.remove(first.id)
        await desk.world.advance(10.0)
        (later,) = desk.world.backend.replicas()
        assert later.id != first.id
        assert (len(later.cores), later.batching and later.batching.max_size) == (1, 4)
        (back,) = (await resized(desk, reset=True)).json()["replicas"]
        assert (back["cores"], back["max_batch"]) == (2, 8)

    at_desk(tmp_path, tell)


def test_every_fault_of_a_resize_is_named_and_nothing_changes(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await deployed_batched(desk)
        answer = await resized(desk, cores=0, max_batch=9, batch_delay="soon")
        assert answer.status_code == 422
        assert [each["where"] for each in answer.json()["error"]["faults"]] == ["cores", "max_batch", "batch_delay"]
        assert "1 to 8" in answer.text
        assert (await resized(desk)).status_code == 422
        assert (await resized(desk, cores=1, reset=True)).status_code == 422
        (replica,) = desk.world.backend.replicas()
        assert replica.batching is None and len(replica.cores) == 2

    at_desk(tmp_path, tell)


def test_a_resize_that_no_replica_can_follow_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await deployed_batched(desk)
        answer = await resized(desk, cores=3)
        assert answer.status_code == 409
        assert "a unit has 2" in answer.text
        assert (await desk.client.post("/api/v1/functions/none/resize", json={"cores": 1})).status_code == 404

    at_desk(tmp_path, tell)


def test_a_function_without_a_ready_replica_is_not_resized(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        answer = await resized(desk, cores=1)
        assert (answer.status_code, "no ready replica" in answer.text) == (409, True)

    at_desk(tmp_path, tell)


def test_a_policy_that_orders_cores_is_obeyed_unless_an_operator_has_ordered_others(tmp_path: Path) -> None:
    """Policy themis at rest: after ten stable seconds one core is enough."""

    async def tell(desk: Desk) -> None:
        flags = {"policy": "themis", "latency": "1s", "policy.profile": "100,0,0,0", "policy.max-cores": "2"}
        (desk.world.folder / "model.py").write_text("class Model: ...\n")
        desk.world.backend.set_accelerators((replace(CPU, cores=2),), (0, 1, 2, 3))
        assert (await desk.deploy(BATCHED, **{"min-scale": "1"}, **flags)).status_code == 201
        await desk.world.advance(3.0)
        (replica,) = desk.world.backend.replicas()
        assert len(replica.cores) == 2
        await desk.world.advance(80.0)
        (replica,) = desk.world.backend.replicas()
        assert len(replica.cores) == 1
        assert (await resized(desk, cores=2)).status_code == 200
        await desk.world.advance(15.0)
        (replica,) = desk.world.backend.replicas()
        assert len(replica.cores) == 2

    at_desk(tmp_path, tell)


def test_a_pipeline_has_no_replicas_to_resize_and_its_logs_are_those_of_its_stages(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await deployed_batched(desk)
        pipeline = "apiVersion: tidegate.dev/v1alpha1\nkind: Pipeline\nmetadata: {name: whole}\n"
        assert (await desk.deploy(f"{pipeline}spec: {{stages: [{{function: echo}}]}}")).status_code == 201
        answer = await desk.client.post("/api/v1/functions/whole/resize", json={"cores": 1})
        assert answer.status_code == 409 and "resize one of its stages: echo" in answer.text
        answer = await desk.get("/functions/whole/recording")
        assert answer.status_code == 409 and "record one of its stages: echo" in answer.text
        await desk.world.advance(2.0)
        for name in ("echo", "whole"):
            (part,) = (await desk.get(f"/functions/{name}/traffic")).json()["parts"]
            assert part["ready"] is True, name
        folder = desk.world.folder / "state" / "logs" / "echo"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "echo-00001-aaaaa.server.log").write_text("hello\n")
        lines = (await desk.get("/functions/whole/logs")).text.splitlines()
        assert any('"line":"hello"' in line for line in lines), lines

    at_desk(tmp_path, tell)
