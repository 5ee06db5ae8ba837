"""A whole deployment as its user meets it: `tidegate up`, deploy, clients, and everything that goes wrong."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.deployment import Deployment, running
from tests.support.deadline import Patience
from tidegate.control.sdk import ApiError, StartFailedError
from tidegate.control.views.functions import ReplicaView

pytestmark = [pytest.mark.live, pytest.mark.early(60), pytest.mark.timeout(120)]

MODEL = Path(__file__).resolve().parent.parent / "support" / "models" / "scripted_server.py"
TWO_CPUS = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 2, memory: 4Gi}]"


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """Shared by the tests that leave it whole: four gateway workers, room for eight replicas."""
    accelerators = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 8, memory: 1Gi}]"
    with running(workers=4, accelerators=accelerators) as found:
        yield found


def manifest(name: str, *, delay: float = 0.0, scale: str = "0, 4", annotations: str = "", spec: str = "") -> str:
    """A function on the counting model; ``scale``: fewest (also the initial) and most replicas."""
    low, high = scale.split(", ")
    keys = ("min-scale", low), ("initial-scale", low), ("max-scale", high)
    bounds = ", ".join(f'tidegate.dev/{key}: "{value}"' for key, value in keys)
    command = json.dumps(
        [sys.executable, str(MODEL), "--listen", "127.0.0.1:{port}", "--delay", str(delay), "--keep-working"]
    )
    return f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: {name}
  annotations: {{{bounds}{annotations and ", " + annotations}}}
spec:
  server: {{command: {command}}}
  {spec}
"""


def ask(
    deployment: Deployment, name: str, *, method: str = "POST", path: str = "/work", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """One request on a connection of its own."""
    fields = {key.replace("_", "-"): value for key, value in headers.items()}
    body = b"{}" if method == "POST" else None
    return ask_raw(deployment, method, path, body, {"Host": f"{name}.localhost", **fields})


def ask_raw(
    deployment: Deployment, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> tuple[int, bytes, dict[str, str]]:
    """One request with these fields."""
    connection = http.client.HTTPConnection("127.0.0.1", deployment.front_port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), {key.lower(): value for key, value in answer.getheaders()}
    finally:
        connection.close()


def many(count: int, one: Callable[[int], int]) -> Counter[int]:
    """The statuses of ``count`` requests sent at once."""
    with ThreadPoolExecutor(count) as pool:
        return Counter(pool.map(one, range(count)))


def stats(deployment: Deployment, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ask(deployment, name, method="GET", path="/stats")[1])
    return found


def eventually(what: Callable[[], bool], within_s: float = 15.0) -> None:
    patience = Patience(within_s)
    while not what():
        assert not patience.is_over, f"not within {patience}"
        time.sleep(0.05)


def replicas(deployment: Deployment, name: str) -> list[ReplicaView]:
    view = deployment.client().function(name)
    return [replica for revision in view.revisions for replica in revision.replicas]


def pids(deployment: Deployment, name: str) -> list[int]:
    return sorted(pid for replica in replicas(deployment, name) if replica.state == "ready" for pid in replica.pids)


@contextmanager
def deployed(deployment: Deployment, name: str, text: str | None = None, **given: Any) -> Iterator[str]:
    """The function while the block runs; deleted afterwards, so that its places are free for the next test."""
    wait, base = given.pop("wait", False), given.pop("base", "/")
    deployment.client().deploy(text or manifest(name, **given), base=base, wait=wait)
    try:
        yield name
    finally:
        deployment.client().delete(name)
        eventually(lambda: name not in {each.name for each in deployment.client().list()})


# --- zero to one ---------------------------------------------------------------------------------------------------


def test_two_hundred_first_requests_cause_one_start_and_never_exceed_the_limit(deployment: Deployment) -> None:
    with deployed(deployment, "herd", scale="0, 1", spec="concurrency: 1"):
        assert many(200, lambda _: ask(deployment, "herd", x_work_ms="5")[0]) == {200: 200}
        seen = stats(deployment, "herd")
        assert seen["most"] == 1
        assert seen["total"] == 200
        assert len(replicas(deployment, "herd")) == 1
        starts = [each for each in deployment.client().cold_starts("herd") if each.from_zero]
        assert len(starts) == 1


def test_a_model_that_loads_for_seconds_is_waited_for_whatever_its_sla(deployment: Deployment) -> None:
    with deployed(deployment, "slow", delay=2.0, annotations="tidegate.dev/latency: 200ms"):
        status, _, headers = ask(deployment, "slow")
        assert status == 200
        timing = dict(part.strip().split(";dur=") for part in headers["server-timing"].split(","))
        assert float(timing["cold-load"]) > 1900
        assert float(timing["wait"]) > 1900


def test_only_its_own_deadline_ends_a_wait_and_it_never_runs(deployment: Deployment) -> None:
    with deployed(deployment, "late", delay=1.5):
        patience = Patience(1.2)
        status, body, _ = ask(deployment, "late", tidegate_timeout_ms="400")
        assert status == 504
        assert not patience.is_over
        assert json.loads(body)["error"]["executed"] == "false"
        assert ask(deployment, "late")[0] == 200
        assert stats(deployment, "late")["total"] == 1


def test_a_server_that_computes_on_keeps_its_slot_until_it_has_ended(deployment: Deployment) -> None:
    with deployed(deployment, "stubborn", scale="1, 1", spec="concurrency: 1\n  cancel: hold", wait=True):
        late = [ask(deployment, "stubborn", x_work_ms="900", tidegate_timeout_ms="200")[0] for _ in range(2)]
        assert late == [504, 504]
        assert ask(deployment, "stubborn")[0] == 200
        seen = stats(deployment, "stubborn")
        assert seen["most_worked"] == 1, "the next request waits for the work that is not wanted any more"
        assert seen["total"] == 2, "and the second late one never began"


def test_a_probe_never_wakes_a_function(deployment: Deployment) -> None:
    with deployed(deployment, "asleep"):
        assert ask(deployment, "asleep", method="GET", path="/v2/health/ready")[0] == 200
        assert ask(deployment, "asleep", method="GET", path="/v2/models/asleep/ready")[0] == 200
        time.sleep(1.2)
        assert replicas(deployment, "asleep") == []


def test_a_burst_beyond_the_bound_is_refused_at_once(deployment: Deployment) -> None:
    with deployed(deployment, "burst", delay=1.0, spec="queue: {requests: 40, max-wait: 60s}"):
        refused: list[str] = []

        def one(_: int) -> int:
            status, _body, headers = ask(deployment, "burst")
            if status == 429:
                refused.append(headers["retry-after"])
            return status

        answers = many(100, one)
        assert set(answers) == {200, 429}
        # The bound is split over four workers: an uneven spread of clients is refused early, never let in late.
        assert answers[200] <= 40 + 3
        assert all(int(seconds) >= 1 for seconds in refused)


# --- what a developer gets wrong -----------------------------------------------------------------------------------


def test_every_fault_of_a_manifest_is_reported_at_once_with_its_line(deployment: Deployment) -> None:
    bad = manifest("bad", annotations='tidegate.dev/percentile: "101", tidegate.dev/laziness: "1"', spec="port: 99999")
    with pytest.raises(ApiError) as caught:
        deployment.client().deploy(bad, base="/")
    text = " ".join(str(fault) for fault in caught.value.detail.faults)
    for word in ("percentile", "laziness", "port"):
        assert word in text
    assert all(fault.line for fault in caught.value.detail.faults)


@pytest.mark.parametrize(
    ("name", "command", "expected"),
    [
        ("dies", "[sh, -c, 'echo the model file is missing >&2; exit 7']", "the model file is missing"),
        ("garbage", "[sh, -c, 'while :; do head -c 300 /dev/urandom; sleep 0.1; done']", "1.5 s"),
        ("mute", "[sleep, '60']", "1.5 s"),
    ],
)
def test_a_server_that_does_not_start_is_explained_in_deploy_status_and_the_answer(
    deployment: Deployment, name: str, command: str, expected: str
) -> None:
    text = f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: {name}}}
spec:
  server: {{command: {command}}}
  readiness: {{path: /ready, start-timeout: 1500ms}}
"""
    with deployed(deployment, name, text):
        revision = deployment.client().function(name).revision
        with pytest.raises(StartFailedError) as caught:
            deployment.client().wait_ready(name, revision)
        assert expected in str(caught.value)
        assert expected in (deployment.client().function(name).message or "")
        status, body, _ = ask(deployment, name)
        assert status == 503, body
        assert expected in json.loads(body)["error"]["message"]
        assert "Traceback" not in body.decode()


def test_a_command_that_is_no_program_is_refused_at_deploy(deployment: Deployment) -> None:
    text = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: absent}
spec: {server: {command: [/nowhere/server, --port, "{port}"]}}
"""
    with pytest.raises(ApiError, match="/nowhere/server"):
        deployment.client().deploy(text, base="/")


def test_an_unknown_model_is_not_found(deployment: Deployment) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", deployment.front_port, timeout=10)
    connection.request("POST", "/v2/models/nothing/infer", b"{}")
    answer = connection.getresponse()
    assert answer.status == 404
    assert "'nothing'" in json.loads(answer.read())["error"]
    connection.close()


def test_a_handlers_folder_may_have_modules_of_our_names(deployment: Deployment, tmp_path: Path) -> None:
    for name in ("gateway.py", "deploy.py", "control.py"):
        (tmp_path / name).write_text("raise RuntimeError('the handler imports this only if it wants to')\n")
    for name in ("traffic", "tests", "activator"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("RATE = 2\n")
    (tmp_path / "handler.py").write_text(
        "from traffic import RATE\n\n\nclass Model:\n    def predict(self, inputs):\n"
        "        return {'y': [RATE * sum(inputs['x'])]}\n"
    )
    text = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: shadow}
spec: {server: {handler: "handler.py:Model"}}
"""
    with deployed(deployment, "shadow", text, base=tmp_path, wait=True):
        answer = deployment.client().invoke(
            "shadow", {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
        )
        assert answer["outputs"][0]["data"] == [6]


# --- real clients --------------------------------------------------------------------------------------------------


@pytest.mark.needs(tool="clients")
def test_curl(deployment: Deployment) -> None:
    with deployed(deployment, "curl"):
        url = f"http://127.0.0.1:{deployment.front_port}/functions/curl/work"
        done = subprocess.run(
            ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-d", "{}", url, "--max-time", "30"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "200", done.stderr


def test_tritonclient_runs_unmodified(deployment: Deployment, tmp_path: Path) -> None:
    import numpy as np
    from tritonclient.http import InferenceServerClient, InferInput

    (tmp_path / "double.py").write_text(
        "class Model:\n    def predict(self, inputs):\n        return {'y': inputs['x'] * 2}\n"
    )
    text = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: double, annotations: {tidegate.dev/initial-scale: "0"}}
spec: {server: {handler: "double.py:Model"}}
"""
    with deployed(deployment, "double", text, base=tmp_path):
        client = InferenceServerClient(f"127.0.0.1:{deployment.front_port}", network_timeout=60)
        assert client.is_server_live()
        assert client.is_model_ready("double")
        for is_binary in (True, False):
            tensor = InferInput("x", [2, 2], "FP32")
            tensor.set_data_from_numpy(np.array([[1, 2], [3, 4]], dtype=np.float32), binary_data=is_binary)
            found = client.infer("double", [tensor]).as_numpy("y")
            assert found is not None
            assert found.tolist() == [[2, 4], [6, 8]]
        client.close()


def test_kserves_v1_by_the_models_name_in_the_path(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(
        "class Model:\n    inputs = {'x': ('FP64', [-1, 2])}\n    arrays = 'plain'\n\n    def predict(self, inputs):\n"
        "        return {'y': [[2 * item for item in row] for row in inputs['x']]}\n"
    )
    text = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {name: twice, annotations: {tidegate.dev/initial-scale: "0"}}
spec: {server: {handler: "double.py:Model"}}
"""
    where = {"Host": f"127.0.0.1:{deployment.front_port}"}

    def call(method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        status, found, _ = ask_raw(deployment, method, path, body, where)
        return status, json.loads(found)

    with deployed(deployment, "twice", text, base=tmp_path):
        status, asleep = call("GET", "/v1/models/twice")
        assert (status, asleep["name"], asleep["ready"]) == (200, "twice", True)
        assert not replicas(deployment, "twice"), "a question about readiness started a replica"
        for path in ("/v1/models/twice:predict", "/functions/twice/v1/models/twice:predict"):
            assert call("POST", path, b'{"instances": [[1, 2], [3, 4]]}') == (200, {"predictions": [[2, 4], [6, 8]]})
        named = call("POST", "/v1/models/twice:predict", b'{"instances": [{"x": [1, 2]}]}')
        assert named == (200, {"predictions": [[2, 4]]})
        status, awake = call("GET", "/v1/models/twice")
        assert (status, awake["name"], awake["ready"], awake["id"]) == (200, "twice", True, "twice")
        wrong = call("POST", "/v1/models/twice:predict", b'{"instances": [[1]]}')
        assert wrong == (400, {"error": "input 'x' must have the shape [-1, 2] (-1: any), got [1, 1]"})
        status, unknown = call("POST", "/v1/models/nothing:predict", b'{"instances": [[1]]}')
        assert (status, type(unknown["error"]), unknown["code"]) == (404, str, "function_not_found")


# --- death and return ----------------------------------------------------------------------------------------------


def test_kill_of_a_model_server_under_load_costs_only_what_it_ran() -> None:
    with running(workers=2, accelerators=TWO_CPUS) as deployment:
        client = deployment.client()
        client.deploy(manifest("mortal", scale="1, 2", spec="concurrency: 1"), base="/", wait=True)
        proxy_and_server = replicas(deployment, "mortal")[0].pids

        def one(number: int) -> int:
            if number == 10:
                time.sleep(0.3)
                os.kill(proxy_and_server[1], signal.SIGKILL)
                return 0
            return ask(deployment, "mortal", x_work_ms="50")[0]

        answers = many(40, one)
        assert answers[200] + answers[502] == 39
        assert answers[502] <= 1
        eventually(lambda: bool(pids(deployment, "mortal")))
        assert ask(deployment, "mortal")[0] == 200


def test_kill_of_the_control_process_leaves_serving_and_the_next_takes_over() -> None:
    with running(workers=2, accelerators=TWO_CPUS) as deployment:
        deployment.client().deploy(manifest("lasting", scale="1, 2"), base="/", wait=True)
        before = pids(deployment, "lasting")
        assert before
        os.kill(deployment.process.pid, signal.SIGKILL)
        deployment.process.wait()
        assert many(20, lambda _: ask(deployment, "lasting")[0]) == {200: 20}
        deployment.up_again()
        eventually(lambda: pids(deployment, "lasting") == before)
        assert many(20, lambda _: ask(deployment, "lasting")[0]) == {200: 20}
        time.sleep(2.5)
        assert pids(deployment, "lasting") == before


def test_a_second_up_on_the_same_directory_is_refused_with_who_holds_it() -> None:
    with running(accelerators=TWO_CPUS) as deployment:
        second = subprocess.run(
            [sys.executable, "-P", "-m", "tidegate.control.cli", "up", "--config", str(deployment.config)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode != 0
        assert str(deployment.process.pid) in second.stdout + second.stderr


def test_a_normal_end_answers_everything_accepted_and_leaves_nothing() -> None:
    with running(workers=2, accelerators=TWO_CPUS) as deployment:
        deployment.client().deploy(manifest("ending", scale="0, 1", spec="concurrency: 2"), base="/")
        assert ask(deployment, "ending")[0] == 200
        eventually(lambda: bool(pids(deployment, "ending")))
        left = pids(deployment, "ending")

        def one(number: int) -> int:
            if number == 0:
                eventually(lambda: deployment.client().function("ending").traffic.requests >= 21)
                deployment.process.send_signal(signal.SIGTERM)
                return 0
            return ask(deployment, "ending", x_work_ms="300")[0]

        assert many(21, one) == {0: 1, 200: 20}
        assert deployment.process.wait(20) == 0
        assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", deployment.front_port), 1).close()
