"""The API over a whole deployment without processes: the round, a fake backend, manifests as people write them."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from tests.support.worlds.api_desk import MANIFEST, Desk, FakeFrontDoor, at_desk
from tests.support.worlds.control_world import CPU
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile


def test_explain_names_the_emulated_accelerators_that_a_function_may_use(tmp_path: Path) -> None:
    t4 = Accelerator(
        name="t4",
        kind=AcceleratorKind.EMULATED,
        count=1,
        memory_bytes=1 << 30,
        profile=Profile(base_s=0.01, per_item_s=0),
    )

    async def tell(desk: Desk) -> None:
        desk.world.backend.set_accelerators((CPU, t4))
        await desk.deploy()
        assert "from a profile: t4" in (await desk.get("/functions/echo/explain")).json()["text"]
        await desk.deploy(MANIFEST + "  accelerators: [cpu]\n")
        await desk.world.advance(3.0)
        assert "emulated" not in (await desk.get("/functions/echo/explain")).json()["text"]

    at_desk(tmp_path, tell)


def test_explain_says_why_what_was_decided_does_not_come(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        desk.world.backend.break_starts("echo-00001", "exited with 1\nno such weights", times=100)
        await desk.deploy()
        await desk.world.advance(5.0)
        text = (await desk.get("/functions/echo/explain")).json()["text"]
        assert "echo-00001 does not start: " in text
        assert "starts in a row failed, next try in " in text
        assert text.endswith("\n    exited with 1\n    no such weights")

    at_desk(tmp_path, tell)


def test_explain_has_the_states_of_idle_replicas_with_their_figures(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        await desk.world.advance(5.0)
        text = (await desk.get("/functions/echo/explain")).json()["text"]
        assert "\nreplicas on cpu: a start takes " in text

    at_desk(tmp_path, tell)


def test_explain_says_that_there_is_no_place(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        desk.world.backend.set_accelerators((replace(CPU, count=1),))
        await desk.deploy(
            MANIFEST.replace("name: echo", "name: first").replace("{tidegate", "{tidegate.dev/min-scale: 1, tidegate")
        )
        await desk.world.advance(3.0)
        await desk.deploy()
        await desk.world.advance(8.0)
        text = (await desk.get("/functions/echo/explain")).json()["text"]
        assert "echo-00001 has no place" in text
        assert "cpu has 0 of 1 places free" in text

    at_desk(tmp_path, tell)


def test_a_deployed_function_is_shown_as_the_manifest_that_deploys_it_again(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        first = (await desk.get("/functions/echo/manifest")).json()
        assert first["revision"] == "echo-00001"
        await desk.deploy(first["manifest"])
        again = (await desk.get("/functions/echo/manifest")).json()
        assert (again["revision"], again["manifest"]) == ("echo-00002", first["manifest"])
        kept = await desk.get("/functions/echo/manifest?revision=echo-00001")
        assert kept.json()["manifest"] == first["manifest"]
        unknown = await desk.get("/functions/echo/manifest?revision=echo-0001")
        assert unknown.status_code == 422
        assert "did you mean `echo-00001`?" in unknown.json()["error"]["message"]

    at_desk(tmp_path, tell)


def test_a_deleted_function_is_unknown_at_once(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        assert (await desk.client.delete("/api/v1/functions/echo")).status_code == 204
        answer = await desk.get("/functions/echo")
        assert answer.status_code == 404
        assert "deployed: none" in answer.text

    at_desk(tmp_path, tell)


def test_nothing_new_is_taken_while_it_ends(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        desk.deployment.leaving = True
        assert (await desk.deploy()).status_code == 503
        assert (await desk.get("/status")).status_code == 200

    at_desk(tmp_path, tell)


def test_the_whole_status_and_its_faults(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        desk.world.faults.set("route table file", "disk full")
        view = (await desk.get("/status")).json()
        assert (view["epoch"], view["gateway"], view["table"][:2]) == (4, "http://127.0.0.1:8080", "1.")
        assert view["faults"] == ["route table file: disk full"]
        assert view["accelerators"][0] == {
            "name": "cpu",
            "kind": "cpu",
            "count": 3,
            "in_use": 1,
            "memory_bytes": 1 << 30,
            "cores": 1,
            "price_per_hour": 0.04,
            "emulated": False,
            "mig": False,
            "mps": False,
            "driver": None,
            "compute_capability": None,
            "power_w": None,
            "power_unknown": "its units are not of the control process's machine",
            "utilization_percent": [],
            "utilization_variation": None,
        }

    at_desk(tmp_path, tell)


def test_a_watch_tells_changes_and_ends_with_the_function(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        async with aclosing(desk.deployment.changes("echo")) as changes:
            first = await anext(changes)
            assert getattr(first, "state", None) == "starting"
            following = asyncio.gather(anext(changes), return_exceptions=True)
            await asyncio.sleep(0)
            await desk.world.advance(2.0)
            (second,) = await following
            while getattr(second, "state", None) != "ready":
                second = await anext(changes)
            await desk.client.delete("/api/v1/functions/echo")
            assert [change async for change in changes] == []

    at_desk(tmp_path, tell)


def test_logs_come_from_the_files_of_replicas(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        folder = tmp_path / "state" / "logs" / "echo"
        folder.mkdir(parents=True)
        (folder / "echo-00001-aaaaa.server.log").write_text("one\ntwo\n")
        (folder / "echo-00001-aaaaa.proxy.log").write_text("proxied\n")
        answer = await desk.get("/functions/echo/logs?tail=1")
        assert [json.loads(line) for line in answer.text.splitlines()] == [
            {"replica": "echo-00001-aaaaa", "source": "server", "line": "two"}
        ]
        assert (await desk.get("/functions/echo/logs?source=all")).text.count("\n") == 3
        unknown = await desk.get("/functions/echo/logs?replica=zz")
        assert unknown.status_code == 422
        assert "a replica of echo with a log: echo-00001-" in unknown.json()["error"]["message"]
        assert (await desk.get("/functions/echo")).json()["last_log"] == ["one", "two"]

    at_desk(tmp_path, tell)


def test_metrics_are_one_text(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        await desk.world.advance(2.0)
        text = (await desk.client.get("/metrics")).text
        assert "tidegate_control_epoch 4\n" in text
        replica = 'function="echo",revision="echo-00001",accelerator="cpu",state="ready"'
        assert f"tidegate_replicas{{{replica}}} 1\n" in text
        assert 'tidegate_desired_replicas{function="echo",revision="echo-00001"} 1\n' in text
        assert 'tidegate_control_gateway_restarts_total{worker="g0"} 2\n' in text
        assert "tidegate_control_process_resident_memory_bytes" in text
        assert "tidegate_gateway_connections 3\n" in text
        assert 'tidegate_cold_start_seconds_count{function="echo",phase="load"} 1\n' in text

    at_desk(tmp_path, tell)


def test_restart_and_reload_go_to_the_front_door(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        door = desk.deployment._gateways
        assert isinstance(door, FakeFrontDoor)
        door.outcomes = {"g0": None, "g1": "it broke"}
        answer = (await desk.client.post("/api/v1/reload")).json()
        assert (answer["reloaded"], answer["faults"]) == (["g0"], {"g1": "it broke"})
        done = (await desk.client.post("/api/v1/restart")).json()
        assert [each["worker"] for each in done["replaced"]] == ["g0.2"]
        assert done["needs_up"] == ["gateway.listen"]
        desk.deployment.leaving = True
        for what in ("reload", "restart"):
            assert (await desk.client.post(f"/api/v1/{what}")).status_code == 503

    at_desk(tmp_path, tell)
