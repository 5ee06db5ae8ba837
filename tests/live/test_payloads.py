"""Payload sampling of a real deployment: events at a sink, in a file, and a sink that is away; off for all others."""

import json
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
import tritonclient.http as triton

from tests.gateway.payloads.test_live import sink
from tests.support.live.deployment import REQUEST, Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
ALL = ("--payload-sample-percent", "100", "--min-scale", "1", "--max-scale", "1", "--wait")


def infer(world: Deployment, name: str, secret: str) -> httpx.Response:
    body = REQUEST | {"parameters": {"password": secret}}
    url = f"{world.gateway}/v2/models/{name}/infer"
    return httpx.post(
        url, json=body, headers={"x-request-id": f"of-{name}"}, timeout=60.0, trust_env=False, verify=False
    )


def in_file(world: Deployment, name: str) -> list[dict[str, Any]]:
    files = (world.state.root / "payloads").glob(f"{name}.*.jsonl")
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_sampled_bodies_are_events_at_the_sink_and_in_files_redacted_and_of_no_other_function(tmp_path: Path) -> None:
    with sink() as server, deployment(tmp_path, *places(tmp_path, 4)) as world:
        world.up()
        world.deploy(world.handler(), *ALL, "--payload-sink", server.url, "--payload-redact", "password")
        world.deploy(world.handler(name="filed"), *ALL, "--payload-max-size", "40", name="filed")
        world.deploy(world.handler(name="quiet"), "--min-scale", "1", "--max-scale", "1", "--wait", name="quiet")
        for name in ("echo", "filed", "quiet"):
            assert infer(world, name, f"canary-{name}").status_code == 200
        world.until(lambda: len(server.events) == 2, 20.0, "two events at the sink")
        request, response = server.events
        assert (request["id"], response["id"]) == ("of-echo.request", "of-echo.response")
        assert request["data"] == REQUEST | {"parameters": {"password": "REDACTED"}}
        assert response["data"]["outputs"][0]["data"] == [2.0, 4.0]
        assert (response["status"], response["function"], response["revision"]) == (200, "echo", "echo-00001")
        world.until(lambda: len(in_file(world, "filed")) == 2, 20.0, "two events in the file")
        cut = in_file(world, "filed")[0]
        assert cut["truncated"] is True and len(cut["data"]) == 40 and cut["bodybytes"] > 40

        with triton.InferenceServerClient(world.gateway.partition("://")[2]) as client:
            tensor = triton.InferInput("x", [1, 2], "FP32")
            tensor.set_data_from_numpy(numpy.array([[1, 2]], "f4"), binary_data=True)
            client.infer("echo", [tensor], headers={"x-request-id": "of-binary"})
        world.until(lambda: len(server.events) == 4, 20.0, "the events of binary tensors")
        binary = server.events[2]
        assert (binary["id"], binary["binarybytes"]) == ("of-binary.request", 8)
        assert binary["data"]["inputs"][0]["name"] == "x"
        assert "canary-echo" not in json.dumps(server.events)
        assert not in_file(world, "quiet") and not in_file(world, "echo")
        logs = world.log.read_text() + "".join(path.read_text() for path in world.state.root.rglob("*.log"))
        assert "canary" not in logs


def test_a_sink_that_is_away_changes_no_answer_and_is_a_line_in_the_status(tmp_path: Path) -> None:
    with sink() as server, deployment(tmp_path, *places(tmp_path, 2)) as world:
        server.status = 503
        world.up()
        world.deploy(world.handler(), *ALL, "--payload-sink", server.url)
        for _ in range(20):
            assert infer(world, "echo", "canary").status_code == 200

        def lines() -> list[str]:
            return [line for line in world.status()["faults"] if "payloads" in line]

        world.until(lines, 30.0, "the fault in the status")
        assert len(lines()) == 1 and "it answers 503" in lines()[0]
        server.status = 200
        world.until(lambda: len(server.events) == 40, 60.0, "all events at the sink that is back")
        world.until(lambda: not lines(), 20.0, "the fault to pass")
