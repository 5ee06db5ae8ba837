"""A replica that is not needed sleeps, and the first request wakes it: with real processes."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment, places
from tidegate.deploy.local.proc import session_members

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states of processes are read from /proc"),
]

MODEL = """
import time
class Slow:
    inputs = {"x": ("FP32", [-1])}
    arrays = "plain"
    def load(self):
        time.sleep(1.5)
        self.calls = 0
    def predict(self, inputs):
        self.calls += 1
        return {"calls": [float(self.calls)] * len(inputs["x"])}
"""
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: slow
  annotations: {tidegate.dev/latency: 500ms, tidegate.dev/scale-to-zero-after: 1s}
spec: {server: {handler: "slow.py:Slow"}}
"""
BODY = {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}


def deployed(world: Deployment, folder: Path, model: str = MODEL) -> None:
    (folder / "slow.py").write_text(model)
    (folder / "slow.yaml").write_text(MANIFEST)
    world.cli("deploy", str(folder / "slow.yaml"))


def call(world: Deployment) -> float:
    """Returns how often this process has been called."""
    answer = httpx.post(f"{world.gateway}/v2/models/slow/infer", json=BODY, timeout=60.0, trust_env=False, verify=False)
    assert answer.status_code == 200, answer.text
    calls: float = answer.json()["outputs"][0]["data"][0]
    return calls


def server(world: Deployment) -> int:
    (pid,) = [pid for name, pid in world.living().items() if name.endswith(".server")]
    return pid


def state_of(pid: int) -> str:
    """``S``, ``R``, ``T`` (stopped) or empty, if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def falls_asleep(world: Deployment) -> int:
    pid = server(world)
    world.until(lambda: state_of(pid) == "T", 30.0, "the model server is paused")
    return pid


def replicas(world: Deployment) -> dict[str, int]:
    """Processes of replicas: pid by record."""
    return {name: pid for name, pid in world.living().items() if name.endswith((".server", ".proxy"))}


def has_ended(world: Deployment, replica: str) -> bool:
    return not any(name.startswith(replica) for name in replicas(world))


@pytest.mark.early
def test_an_idle_replica_sleeps_and_the_next_request_finds_its_memory(tmp_path: Path) -> None:
    with deployment(tmp_path, "--servers-sleep", "true") as world:
        world.up()
        deployed(world, tmp_path)
        first = call(world)
        pid = falls_asleep(world)
        status = world.cli("status", "slow").stdout
        assert "1 asleep" in status and "surplus ones sleep" in status
        assert call(world) == first + 1, "the same process, with what it had in memory"
        assert falls_asleep(world) == pid
        explained = world.cli("explain", "slow", "--last", "60").stdout
        assert "put_to_sleep" in explained and "woken" in explained
        (tmp_path / "slow.py").write_text(MODEL.replace("self.calls = 0", "self.calls = 1000"))
        world.cli("deploy", str(tmp_path / "slow.yaml"))
        world.until(lambda: state_of(pid) == "", 20.0, "the sleeping replica of the old revision ends")
        assert call(world) == first + 1000
        pid = falls_asleep(world)
        world.cli("delete", "slow")
        world.until(lambda: state_of(pid) == "", 30.0, "the sleeping replica of a deleted function ends")


def test_a_successor_of_a_killed_control_process_keeps_what_sleeps(tmp_path: Path) -> None:
    """The place of the sleeping replica is another function's by then, whose replica serves on."""
    with deployment(tmp_path, "--servers-sleep", "true", *places(tmp_path, 1)) as world:
        world.up()
        deployed(world, tmp_path)
        first = call(world)
        pid = falls_asleep(world)
        world.cli("deploy", world.handler(name="b"), "--name", "b", "--min-scale", "1")
        assert world.infer(name="b").status_code == 200
        kept = replicas(world)
        assert len(kept) == 4
        world.kill()
        world.up()
        assert replicas(world) == kept, "neither replica was ended"
        assert world.infer(name="b").status_code == 200
        assert state_of(pid) == "T" and "1 asleep" in world.cli("status", "slow").stdout
        world.cli("delete", "b")
        assert call(world) == first + 1, "the same process, with what it had in memory"


def test_what_sleeps_and_is_killed_is_replaced_by_the_next_request(tmp_path: Path) -> None:
    with deployment(tmp_path, "--servers-sleep", "true") as world:
        world.up()
        deployed(world, tmp_path)
        first = call(world)
        for half in (".server", ".proxy"):
            pid = falls_asleep(world)
            (replica,) = [name.removesuffix(".server") for name, each in world.living().items() if each == pid]
            world.end(f"{replica}{half}")
            world.until(partial(has_ended, world, replica), 10.0, "the other half ends too")
            assert call(world) == first, "another process"
        pid = falls_asleep(world)
        world.kill()
        world.cli("down")
        assert state_of(pid) in ("", "Z") and not world.living(), "nothing is left, also without a control process"


def test_five_hundred_requests_at_once_wake_one_replica_and_all_are_answered(tmp_path: Path) -> None:
    with deployment(tmp_path, "--servers-sleep", "true") as world:
        world.up()
        deployed(world, tmp_path)
        call(world)
        pid = falls_asleep(world)
        with (
            httpx.Client(
                limits=httpx.Limits(max_connections=500), timeout=60.0, trust_env=False, verify=False
            ) as client,
            ThreadPoolExecutor(500) as threads,
        ):
            url = f"{world.gateway}/v2/models/slow/infer"
            answers = list(threads.map(lambda _: client.post(url, json=BODY).status_code, range(500)))
        assert answers == [200] * 500
        assert state_of(pid) not in ("", "T"), "the sleeping one serves"


def test_what_was_paused_just_before_the_kill_ends_as_a_whole(tmp_path: Path) -> None:
    """Its records say nothing of the pause, as if the kill had come between both."""
    child = "import subprocess, time\n" + MODEL.replace(
        "self.calls = 0", "self.calls = 0; subprocess.Popen(['sleep', '600'])"
    )
    with deployment(tmp_path, "--servers-sleep", "true") as world:
        world.up()
        deployed(world, tmp_path, child)
        first = call(world)
        members = session_members(falls_asleep(world))
        assert len(members) == 2 and {state_of(pid) for pid in members} == {"T"}
        world.kill()
        for path in world.state.processes.glob("slow-*.json"):
            record = json.loads(path.read_text())
            record["replica"]["asleep_at"] = None
            path.write_text(json.dumps(record))
        world.up()
        world.until(lambda: not any(map(state_of, members)), 10.0, "both of its processes end")
        assert call(world) == first
