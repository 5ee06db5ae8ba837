"""The API over a whole deployment without processes: the round, a fake backend, manifests as people write them."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import httpx

from tests.support.worlds.control_api import app_over
from tests.support.worlds.control_world import CPU, ControlWorld, in_world
from tidegate.control.api.deployment import OPEN_PORT, Deployment
from tidegate.control.metrics.scraping import Scrape
from tidegate.control.state.directory import StateDirectory
from tidegate.control.views.deployment import GatewayView, ReplacedView
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile
from tidegate.store.embedded import EmbeddedStore

MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: echo
  annotations: {tidegate.dev/latency: 200ms}
spec:
  server: {command: [python3, server.py, --port, "{port}"]}
"""


WORKER = GatewayView(worker="g0", pid=7, state="serving", restarts=2, table="4.1", connections=0)


class Door:
    url = "http://127.0.0.1:8080"
    certificate: str | None = None

    def __init__(self) -> None:
        self.told: dict[str, str | None] = {"g0": None}

    async def reload(self) -> dict[str, str | None]:
        return self.told

    def views(self) -> tuple[GatewayView, ...]:
        return ()

    async def linked(self, limit_s: float) -> bool:
        return True


async def renew() -> tuple[tuple[ReplacedView, ...], tuple[str, ...]]:
    return (ReplacedView(worker="g0.2", pid=8, old="g0", old_pid=7),), ("gateway.listen",)


def scrape_of(world: ControlWorld, state: StateDirectory) -> Scrape:
    async def others() -> dict[str, bytes | None]:
        return {"g0/1": b"# TYPE tidegate_gateway_connections gauge\ntidegate_gateway_connections 3\n"}

    own = world.own_metrics(WORKER)
    return Scrape(own, others, functions=lambda: {"echo"}, kept=state.counted, goes_on=False, faults=world.faults)


class Desk:
    """A client of the API, and the deployment behind it."""

    def __init__(self, world: ControlWorld, deployment: Deployment, client: httpx.AsyncClient) -> None:
        self.world = world
        self.deployment = deployment
        self.client = client

    async def deploy(self, text: str = MANIFEST, **flags: str) -> httpx.Response:
        body = {"manifest": text, "base": str(self.world.folder), "source": "echo.yaml", "flags": flags}
        answer = await self.client.post("/api/v1/functions", json=body)
        await self.world.second()
        return answer

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(f"/api/v1{path}")


def at_desk(folder: Path, tell: Callable[[Desk], Awaitable[None]]) -> None:
    async def story(world: ControlWorld) -> None:
        state = StateDirectory(folder / "state")
        state.prepare()
        store = await EmbeddedStore.open(folder / "other.db")
        deployment = Deployment(
            state=state,
            store=store,
            loop=world.loop,
            gateways=Door(),
            scrape=scrape_of(world, state).pieces,
            epoch=4,
            version="1.0",
            domain="localhost",
            stop=lambda: None,
            renew=renew,
        )
        app = app_over(deployment, token="t", version="1.0")
        transport = httpx.ASGITransport(app)
        headers = {"authorization": "Bearer t"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
            await tell(Desk(world, deployment, client))
        await store.close()

    in_world(folder, story)


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


def test_a_function_from_another_file_is_replaced_on_request_only(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        async def deploy(origin: str | None, *, replace: bool = False) -> tuple[int, str]:
            body = {"manifest": MANIFEST, "base": str(tmp_path), "origin": origin, "replace": replace}
            answer = await desk.client.post("/api/v1/functions", json=body)
            return answer.status_code, answer.text

        assert [(await deploy(origin))[0] for origin in ("/a.yaml", "/a.yaml", None, "/a.yaml")] == [201] * 4
        assert (await deploy("/a.yaml"))[0] == 201
        code, text = await deploy("/b.yaml")
        assert code == 409 and "other_source" in text and "the source of echo was /a.yaml, is /b.yaml" in text
        assert (await deploy("/b.yaml", replace=True))[0] == 201
        assert (await deploy("/b.yaml"))[0] == 201
        await desk.world.delete("echo")
        assert (await deploy("/a.yaml"))[0] == 201

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


def test_deploying_a_manifest(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        answer = await desk.deploy()
        assert answer.status_code == 201
        (deployed,) = answer.json()["functions"]
        assert deployed["revision"] == "echo-00001"
        assert deployed["filled_in"]["policy"] == "tide"
        assert deployed["filled_in"]["accelerators"] == "cpu"
        await desk.world.advance(2.0)
        view = (await desk.get("/functions/echo")).json()
        assert (view["state"], view["ready"], view["latency_s"]) == ("ready", 1, 0.2)
        assert view["url"] == "http://echo.localhost:8080/"
        assert view["revisions"][0]["replicas"][0]["accelerator"] == "cpu"
        explained = (await desk.get("/functions/echo/explain")).json()
        assert "initial_scale" in explained["text"]
        assert explained["decisions"][0]["desired"] == 1
        (start,) = (await desk.get("/functions/echo/cold-starts")).json()
        assert start["phases"]["load_s"] == 1.0

    at_desk(tmp_path, tell)


def test_flags_win_over_the_text(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy(latency="50ms", **{"min-scale": "2"})
        await desk.world.advance(2.0)
        view = (await desk.get("/functions/echo")).json()
        assert (view["latency_s"], view["ready"]) == (0.05, 2)

    at_desk(tmp_path, tell)


def test_all_faults_at_once_and_nothing_is_deployed(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        answer = await desk.deploy(MANIFEST.replace("name: echo", "name: Echo").replace("200ms", "soon"))
        assert answer.status_code == 422
        faults = answer.json()["error"]["faults"]
        assert {fault["line"] for fault in faults} == {5, 6}
        assert (await desk.get("/functions")).json() == []

    at_desk(tmp_path, tell)


def test_an_accelerator_that_is_not_here_is_a_fault(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        answer = await desk.deploy(MANIFEST + "  accelerators: [h100]\n")
        assert answer.status_code == 422
        assert "h100" in answer.text

    at_desk(tmp_path, tell)


def test_a_model_name_has_one_owner(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        answer = await desk.deploy(MANIFEST.replace("name: echo", "name: other") + "  models: [echo]\n")
        assert answer.status_code == 422
        assert "echo answers to it" in answer.text
        assert (await desk.deploy()).status_code == 201, "the owner itself may be deployed again"

    at_desk(tmp_path, tell)


def test_a_model_that_the_serving_revision_answers_to_is_taken_until_another_one_serves(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        other = MANIFEST.replace("name: echo", "name: other") + "  models: [net]\n"
        await desk.deploy(MANIFEST + "  models: [net]\n")
        await desk.world.advance(2.0)
        desk.world.backend.break_starts("echo-00002", "no such weights", times=2)
        await desk.deploy(MANIFEST + "  models: [mesh]\n")
        assert (await desk.deploy(other)).status_code == 422, "echo-00001 still serves it"
        await desk.world.advance(10.0)
        assert (await desk.deploy(other)).status_code == 201

    at_desk(tmp_path, tell)


def test_deploying_again_is_a_new_revision(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        await desk.world.advance(2.0)
        answer = await desk.deploy()
        assert answer.json()["functions"][0]["revision"] == "echo-00002"
        await desk.world.advance(4.0)
        view = (await desk.get("/functions/echo")).json()
        assert view["revision"] == "echo-00002"

    at_desk(tmp_path, tell)


def test_a_deleted_function_is_unknown_at_once(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.deploy()
        assert (await desk.client.delete("/api/v1/functions/echo")).status_code == 204
        answer = await desk.get("/functions/echo")
        assert answer.status_code == 404
        assert "deployed: none" in answer.text

    at_desk(tmp_path, tell)


def test_a_base_that_is_no_absolute_folder_is_refused(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        answer = await desk.client.post("/api/v1/functions", json={"manifest": MANIFEST, "base": "here"})
        assert answer.status_code == 422
        assert "absolute" in answer.text

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
        assert isinstance(door, Door)
        door.told = {"g0": None, "g1": "it broke"}
        told = (await desk.client.post("/api/v1/reload")).json()
        assert (told["reloaded"], told["faults"]) == (["g0"], {"g1": "it broke"})
        done = (await desk.client.post("/api/v1/restart")).json()
        assert [each["worker"] for each in done["replaced"]] == ["g0.2"]
        assert done["needs_up"] == ["gateway.listen"]
        desk.deployment.leaving = True
        for what in ("reload", "restart"):
            assert (await desk.client.post(f"/api/v1/{what}")).status_code == 503

    at_desk(tmp_path, tell)


def test_a_command_on_a_port_behind_an_access_rule_is_a_warning_and_one_on_a_unix_socket_is_not(
    tmp_path: Path,
) -> None:
    protected = MANIFEST + "  access: {api-keys: true}\n"

    async def tell(desk: Desk) -> None:
        for text, is_open in ((MANIFEST, False), (protected, True), (protected.replace("{port}", "{socket}"), False)):
            (deployed,) = (await desk.deploy(text)).json()["functions"]
            assert (OPEN_PORT in deployed["warnings"]) is is_open

    at_desk(tmp_path, tell)


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
