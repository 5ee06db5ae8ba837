"""Logs as JSON: each line of every process is an object, a request is found by one id, and no secret is in any."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.live.test_grpc_gateway import address_of
from tests.support.live.deployment import REQUEST, Deployment, deployment, places
from tests.support.live.otlp_receiver import otlp_receiver

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

HANDLER = """
import os, sys
class Fails:
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    def load(self):
        print("printed by", "the model")
        assert os.environ["FROM_ENV"] and os.environ["FROM_FILE"]
    def predict(self, inputs):
        raise ValueError("it fails")
"""
ID = "canary-free-request"


def lines(world: Deployment) -> Iterator[dict[str, Any]]:
    """All lines of all processes; each must be an object."""
    for path in (world.log, *world.state.root.rglob("*.log")):
        for line in path.read_text().splitlines():
            found = json.loads(line)
            assert {"time", "level", "logger"} <= found.keys(), (path, line)
            assert found["time"].endswith("Z")
            yield found


def text_of(world: Deployment) -> str:
    return "".join(path.read_text(errors="replace") for path in (world.log, *world.state.root.rglob("*.log*")))


def test_each_line_is_an_object_a_request_is_found_by_its_id_and_no_secret_is_in_any(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    (tmp_path / "secret").write_text("canary-file")
    manifest = tmp_path / "fails.yaml"
    manifest.write_text(
        f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: fails
  annotations: {{tidegate.dev/min-scale: "1", tidegate.dev/max-scale: "1"}}
spec:
  server: {{handler: "{tmp_path}/handler.py:Fails"}}
  protocol: v2
  env: {{FROM_ENV: canary-env}}
  secrets: {{FROM_FILE: "{tmp_path}/secret"}}
"""
    )
    flags = (
        "--log-format",
        "json",
        "--log-access-sampling",
        "1",
        "--log-level",
        "debug",
        "--tracing-sample-ratio",
        "1",
    )
    with (
        otlp_receiver() as collector,
        deployment(tmp_path, *places(tmp_path, 2), *flags, "--tracing-endpoint", collector.url) as world,
    ):
        world.up()
        world.cli("deploy", str(manifest))
        body = REQUEST | {"parameters": {"secret": "canary-body"}}
        fields = {
            "authorization": "Bearer canary-authorization",
            "cookie": "session=canary-cookie",
            "x-api-key": "canary-key",
            "x-request-id": ID,
        }
        answer = httpx.post(
            f"{world.gateway}/v2/models/fails/infer?token=canary-query",
            json=body,
            headers=fields,
            timeout=60.0,
            trust_env=False,
            verify=False,
        )
        assert answer.status_code == 500
        with grpc.insecure_channel(address_of(world)) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            metadata = (("authorization", "Bearer canary-metadata"), ("x-secret-bin", b"canary-binary"))
            with pytest.raises(grpc.RpcError):
                call(b"\x0a\x05fails\x1a\x0bcanary-call", metadata=metadata, timeout=30.0)
        holder = world.state.holder()
        assert holder is not None
        for token in (world.state.token, "canary-token"):
            httpx.get(
                f"{holder.api}/v1/functions",
                headers={"authorization": f"Bearer {token}"},
                trust_env=False,
                verify=False,
            )

        def about() -> list[dict[str, Any]]:
            return [line for line in lines(world) if line.get("request_id") == ID]

        world.until(lambda: {"access", "model-server"} <= {line["logger"] for line in about()}, 20.0, "both lines")
        failed = next(line for line in about() if line["logger"] == "model-server")
        assert (failed["level"], failed["function"], failed["revision"]) == ("error", "fails", "fails-00001")
        assert failed["replica"].startswith("fails-00001-")
        assert "it fails" in failed["message"]
        traces = [line for line in lines(world) if line.get("message", "").startswith("Traceback")]
        assert traces and all("ValueError: it fails" in line["message"] for line in traces), "a traceback is one line"
        assert "printed by the model" in [line.get("message") for line in lines(world)]
        assert "tidegate" in {line["logger"] for line in lines(world)}, "the control process's own"
        world.until(lambda: collector.spans, 20.0, "spans")
        found = text_of(world)
        assert ID in found
        assert world.state.token not in found
        assert "canary-" not in found.replace(ID, "")
        assert b"canary-" not in collector.raw.replace(ID.encode(), b"")
