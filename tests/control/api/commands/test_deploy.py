"""Deploys over a whole deployment without processes: what is refused, what is filled in, what is warned of."""

from pathlib import Path

from tests.support.worlds.api_desk import MANIFEST, Desk, at_desk
from tidegate.control.api.commands.deploy import OPEN_PORT


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


def test_a_base_that_is_no_absolute_folder_is_refused(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        answer = await desk.client.post("/api/v1/functions", json={"manifest": MANIFEST, "base": "here"})
        assert answer.status_code == 422
        assert "absolute" in answer.text

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
