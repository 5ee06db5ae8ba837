"""``tidegate load`` against deployed functions, in each of its modes; the deployment's own figures say the same."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.test_openai import manifest
from tests.live.test_tls import tls_flags
from tests.support.live.deployment import Deployment, deployment, places

EMBEDDER = """
import numpy as np

class Embedder:
    inputs = {"text": ("BYTES", [-1])}
    outputs = {"embedding": ("FP32", [-1, 3])}

    def predict(self, inputs):
        return {"embedding": np.ones((len(inputs["text"]), 3), np.float32)}
"""

pytestmark = [pytest.mark.live, pytest.mark.early(60), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A V2 function with an SLA, and a model of OpenAI's API."""
    folder = tmp_path_factory.mktemp("load")
    with deployment(folder, *places(folder, 3)) as made:
        made.up()
        made.deploy(made.handler(), "--latency", "5s", "--max-scale", "1", "--min-scale", "1", "--wait")
        made.cli("deploy", manifest(folder, "chat"))
        yield made


def counted(world: Deployment, function: str = "echo") -> tuple[int, int]:
    """Requests that the gateways have answered and inferences that arrived there, as they tell it themselves."""
    with world.sdk() as sdk:
        text = sdk.metrics()
    answered = _sum(text, "tidegate_gateway_ended_requests_total", f'function="{function}"', 'outcome="answered"')
    return answered, _sum(text, "tidegate_gateway_inferences_total", f'function="{function}"')


def _sum(text: str, name: str, *labels: str) -> int:
    rows = [
        line for line in text.splitlines() if line.startswith(name + "{") and all(label in line for label in labels)
    ]
    return round(sum(float(line.rpartition(" ")[2]) for line in rows))


def loaded(world: Deployment, target: str, *flags: str) -> dict[str, Any]:
    """Runs a load and checks what it says against what the gateways say: each request, and the one for the metadata."""
    before = counted(world)
    found: dict[str, Any] = world.ask("load", target, *flags)
    asked = found["protocol"] != "http"
    wanted = (before[0] + found["sent"] + asked, before[1] + found["inferences"] + asked)
    world.until(lambda: counted(world) == wanted, 10.0, f"{wanted} in the gateways' own metrics, not {counted(world)}")
    assert found["sent"] == found["answered"] == found["good"] == sum(found["codes"].values())
    assert (found["errors"], found["unfinished"], found["is_partial"]) == ({}, 0, False)
    return found


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        (("--rate", "50", "--for", "2s", "--arrivals", "even"), 100),
        (("--shape", "steps:1s@20,1s@60", "--arrivals", "uniform"), 80),
        (("--phase", "0s:20:2:20", "--phase", "500ms:30:3:20"), 50),
    ],
    ids=["rate", "shape", "phases"],
)
def test_what_is_planned_is_sent(world: Deployment, flags: tuple[str, ...], count: int) -> None:
    found = loaded(world, "echo", *flags)
    assert found["sent"] == count
    assert (found["protocol"], found["codes"]) == ("v2", {"200": count})
    assert found["sla"]["is_met"]
    assert found["sla"]["latency_s"] == 5.0
    assert found["latency"]["count"] == count


def test_a_trace_is_sent_with_its_inferences(world: Deployment, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"at": {number / 20}, "inferences": {1 + number % 3}}}\n' for number in range(30)))
    found = loaded(world, "echo", "--trace", str(trace), "--from", "500ms", "--scale", "2")
    assert found["sent"] == 2 * 20
    assert found["inferences"] == 2 * sum(1 + number % 3 for number in range(10, 30))


@pytest.mark.parametrize("protocol", ["v2", "grpc"])
def test_callers_and_batches_over_both_protocols(world: Deployment, protocol: str) -> None:
    flags = ("--protocol", protocol, "--concurrency", "3", "--for", "1s", "--batches", "1:0.5,8:0.5")
    found = loaded(world, "echo", *flags)
    assert found["sent"] > 10
    assert found["codes"] == {"200" if protocol == "v2" else "OK": found["sent"]}
    assert found["sent"] < found["inferences"] < 8 * found["sent"]


def test_a_stream_of_grpc_has_the_times_of_its_messages(world: Deployment) -> None:
    found = world.ask("load", "echo", "--protocol", "grpc", "--stream", "--callers", "2", "--for", "1s")
    assert found["good"] == found["sent"] == found["tokens"]["streams"] > 0
    assert found["latency"]["mean_s"] <= found["tokens"]["first"]["mean_s"] <= found["whole"]["mean_s"]


def test_chats_stream_and_their_tokens_count(world: Deployment) -> None:
    found = world.ask("load", "chat", "--callers", "2", "--for", "1s", "--tokens", "7")
    assert found["good"] == found["sent"] == found["tokens"]["streams"] > 0
    assert found["tokens"]["tokens"] == 7 * found["sent"]
    assert found["tokens"]["between"]["count"] == 6 * found["sent"]
    assert found["tokens"]["first"]["slowest_s"] <= found["whole"]["slowest_s"]


def test_a_function_without_chats_gets_embeddings_as_the_call_that_its_deploy_prints(
    world: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "texts.py").write_text(EMBEDDER)
    (tmp_path / "texts.yaml").write_text(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: texts}\n"
        "spec: {server: {handler: 'texts.py:Embedder'}, protocol: openai}\n"
    )
    deployed = json.loads(world.cli("deploy", str(tmp_path / "texts.yaml"), "--json").stdout)
    assert "/v1/embeddings" in deployed["functions"][0]["call"]
    found = world.ask("load", "texts", "--callers", "1", "--for", "500ms")
    assert found["good"] == found["sent"] > 0
    world.cli("delete", "texts")


def test_a_url_is_plain_http_with_a_body_of_ones_own(world: Deployment, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text('{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}')
    target = f"{world.gateway}/functions/echo/v2/models/echo/infer"
    assert loaded(world, target, "--callers", "2", "--for", "1s", "--body", str(body))["protocol"] == "http"
    wrong = world.cli("load", f"{world.gateway}/functions/none/", "--callers", "1", "--for", "500ms", "--json", code=1)
    found = json.loads(wrong.stdout)
    assert found["codes"] == {"404": found["sent"]}
    assert found["errors"] == {"function_not_found": found["sent"]}


def test_a_missed_sla_is_an_exit_code_and_reports_are_files(world: Deployment, tmp_path: Path) -> None:
    page, table = tmp_path / "r.html", tmp_path / "r.csv"
    flags = ("--rate", "20", "--for", "1s", "--sla", "1us@50", "--report", str(page), "--csv", str(table))
    done = world.cli("load", "echo", *flags, code=1)
    assert "MISSED: 0.00 % within" in done.stdout
    assert page.read_text().count("<svg") == 2
    assert len(table.read_text().splitlines()) in (2, 3)


def test_ctrl_c_leaves_a_valid_partial_report(world: Deployment, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    command = world.command("load", "echo", "--rate", "50", "--for", "1h", "--json", "--report", str(page))
    before = counted(world)[0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        world.until(lambda: counted(world)[0] > before + 25, 20.0, "requests of the load")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=10.0)
        assert process.returncode == 130
    found = json.loads(output)
    assert found["is_partial"]
    assert found["good"] > 20
    assert found["sent"] == found["answered"] + found["unfinished"]
    assert "this report is partial" in page.read_text()


def test_there_is_no_progress_where_there_is_no_terminal(world: Deployment) -> None:
    assert world.cli("load", "echo", "--callers", "1", "--for", "2s").stderr == ""
    assert world.cli("load", "echo", "--callers", "1", "--for", "1s", "--json").stderr == ""


def test_a_model_without_metadata_is_reported_and_a_sleeping_one_is_woken(world: Deployment) -> None:
    world.deploy(world.handler(name="late", load_s=0.5), "--initial-scale", "0", name="late")
    found = world.ask("load", "late", "--callers", "1", "--for", "500ms")
    assert found["good"] == found["sent"] > 0
    done = world.cli("load", "chat", "--protocol", "v2", "--callers", "1", "--for", "1s", code=1)
    assert "the model declares no inputs: give the body of a request with --body FILE" in done.stderr


def test_a_front_door_with_tls_is_trusted_by_its_own_certificate(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as secure:
        secure.up()
        secure.deploy(secure.handler(), "--min-scale", "1", "--wait")
        found = secure.ask("load", "echo", "--callers", "2", "--for", "1s")
        assert found["good"] == found["sent"] > 0
        refused = secure.cli("load", "echo", "--protocol", "grpc", "--callers", "1", "--for", "1s", code=2)
        assert "gRPC is sent in cleartext" in refused.stderr
        stranger = f"{secure.gateway}/functions/echo/"
        untrusted = secure.cli("load", stranger, "--callers", "1", "--for", "300ms", "--json", code=1)
        assert set(json.loads(untrusted.stdout)["errors"]) == {"connect"}
