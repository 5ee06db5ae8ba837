"""Gateway workers replaced under load: no client is refused, cut off or forgotten."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.live.deployment import REQUEST, Deployment, deployment, is_alive
from tests.support.live.strict_clients import Hammer

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

MODEL = Path(__file__).resolve().parent.parent / "support" / "models" / "scripted_server.py"
BODY = json.dumps(REQUEST).encode()
INFER = "/v2/models/echo/infer"


def deploy_streams(world: Deployment) -> None:
    """A function that streams, as ``streams``."""
    command = json.dumps([sys.executable, str(MODEL), "--listen", "127.0.0.1:{port}", "--echo"])
    manifest = world.folder / "streams.yaml"
    manifest.write_text(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: streams, annotations: "
        "{tidegate.dev/min-scale: '1', tidegate.dev/concurrency: '32'}}\n"
        f"spec: {{protocol: http, server: {{command: {command}}}}}\n"
    )
    world.cli("deploy", str(manifest))


def workers(world: Deployment) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.status()["gateways"]
    return found


class Aside:
    """Runs ``turn`` on a thread; :meth:`end` has its answer, or raises what it raised."""

    def __init__(self, turn: Callable[[], Any]) -> None:
        self._turn = turn
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._turn()
        except BaseException as error:
            self._error = error

    def end(self, limit_s: float) -> Any:
        self._thread.join(limit_s)
        assert not self._thread.is_alive(), f"not over after {limit_s:g} s"
        if self._error is not None:
            raise self._error
        return self._answer


def events(url: str, count: int, every_s: float) -> list[str]:
    """The events of a whole stream."""
    with httpx.stream(
        "GET", f"{url}/functions/streams/events?count={count}&every={every_s}", timeout=30, verify=False
    ) as answer:
        return [line for line in answer.iter_lines() if line]


def talk(url: str, until: threading.Event) -> int:
    """Echoes over one WebSocket until it is to stop; how many."""
    count = 0
    with connect(f"ws://{url.partition('://')[2]}/functions/streams/socket") as line:
        while not until.is_set():
            line.send(str(count))
            assert line.recv(timeout=10) == str(count)
            count += 1
            time.sleep(0.05)
    return count


@pytest.mark.parametrize("count", ["1", "2"])
def test_three_restarts_under_load_lose_nothing(tmp_path: Path, count: str) -> None:
    with deployment(tmp_path, "--gateway-workers", count) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        first = {each["pid"] for each in workers(world)}
        with Hammer(world.gateway, BODY, path=INFER, fresh=2, kept=3) as hammer:
            for life in (2, 3, 4):
                done = world.ask("restart")
                names = [f"g{seat}.{life}" for seat in range(int(count))]
                assert [each["worker"] for each in done["replaced"]] == names
                before = hammer.answered
                world.until(lambda before=before: hammer.answered > before + 50, 20.0, "more answers")  # type: ignore[misc]
        assert not hammer.failures
        world.until(lambda: len(workers(world)) == int(count), 15.0, "the old ones to be gone")
        assert not any(is_alive(pid) for pid in first)
        assert {each["state"] for each in world.status()["gateways"]} == {"serving"}
        world.until(lambda: world.status()["faults"] == [], 15.0, "no source that is too busy to answer")
        assert world.stop() == 0
        assert world.living() == {}


def test_what_two_workers_of_one_seat_count_is_neither_lost_nor_doubled(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        with Hammer(world.gateway, BODY, path=INFER, fresh=1, kept=2, pause_s=0.01) as hammer:
            world.until(lambda: hammer.answered > 100, 20.0, "some answers")
            world.ask("restart")
            before = hammer.answered
            world.until(lambda: hammer.answered > before + 100, 20.0, "more answers")
        assert not hammer.failures
        world.until(lambda: len(workers(world)) == 1, 15.0, "the old one to be gone")

        def counted() -> bool:
            traffic = world.status("echo")["traffic"]
            assert traffic["requests"] <= hammer.answered
            return bool(traffic["requests"] == traffic["answered"] == hammer.answered)

        world.until(counted, 10.0, f"{hammer.answered} requests to be counted")


def test_streams_and_tunnels_stay_with_the_old_worker(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        deploy_streams(world)
        (old,) = workers(world)
        hang_up = threading.Event()
        stream = Aside(lambda: events(world.gateway, 40, 0.25))
        tunnel = Aside(lambda: talk(world.gateway, hang_up))
        world.until(lambda: workers(world)[0]["connections"] == 2, 10.0, "both to be there")
        world.ask("restart")
        assert [each["state"] for each in workers(world)] == ["serving", "retiring"]
        assert world.infer(name="streams").status_code == 200, "by the new one"
        assert stream.end(60.0) == [f"data: {number}" for number in range(40)]
        assert is_alive(old["pid"]), "it still has the tunnel"
        hang_up.set()
        assert tunnel.end(10.0) > 10
        world.until(lambda: not is_alive(old["pid"]), 15.0, "the old one to end")


def test_new_limits_are_in_force_after_a_restart(tmp_path: Path) -> None:
    settings = tmp_path / "tidegate.toml"
    settings.write_text("")
    with deployment(tmp_path, "--config", str(settings), "--gateway-workers", "1") as world:
        world.up()
        deploy_streams(world)
        url = f"{world.gateway}/functions/streams/x"
        assert httpx.post(url, content=b"x" * 4000, verify=False).status_code == 200
        settings.write_text('[limits]\nbody-bytes = "2Ki"\n[log]\nformat = "json"\n')
        assert world.ask("restart")["needs_up"] == ["log.format"]
        assert httpx.post(url, content=b"x" * 4000, verify=False).status_code == 413
        settings.write_text('[limits]\nbody-bytes = "many"\n')
        wrong = world.cli("restart", code=2)
        assert "limits.body-bytes" in wrong.stderr
        assert httpx.post(url, content=b"x", verify=False).status_code == 200


def test_a_successor_that_cannot_start_leaves_the_old_worker_where_it_is(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        # A folder where the successor's admin socket should be.
        (world.state.run / "g0.2.sock").mkdir()
        with Hammer(world.gateway, BODY, path=INFER, fresh=1, kept=1) as hammer:
            refused = world.cli("restart", code=1)
            assert "g0 was not replaced" in refused.stderr
            (worker, *_) = workers(world)
            assert (worker["worker"], worker["state"], worker["restarts"]) == ("g0", "serving", 0)
            assert [each["worker"] for each in world.ask("restart")["replaced"]] == ["g0.3"]
        assert not hammer.failures


def test_the_listening_socket_survives_its_control_process(tmp_path: Path) -> None:
    """A worker that is adopted and dies later leaves the connections that wait in its socket to its successor."""
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        gateway = world.gateway
        world.kill()
        world.up()
        assert world.gateway == gateway
        pid = world.living()["gateway-g0"]
        os.kill(pid, signal.SIGSTOP)  # connections wait in the socket, unseen
        waiting = [Aside(lambda: world.infer(gateway=gateway).status_code) for _ in range(5)]
        world.until(lambda: backlog(gateway) >= 5, 10.0, "five waiting connections")
        os.kill(pid, signal.SIGKILL)
        assert [each.end(30.0) for each in waiting] == [200] * 5
        status = world.status()
        assert (status["gateways"][0]["worker"], status["gateways"][0]["restarts"]) == ("g0", 1)


def test_an_up_with_other_settings_adopts_and_offers_a_restart(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "2") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        with Hammer(world.gateway, BODY, path=INFER, fresh=2, kept=2) as hammer:
            world.kill()
            world.up("--limits-body-bytes", "1Mi")
            faults = world.status()["faults"]
            assert sum("`tidegate restart` replaces it" in fault for fault in faults) == 2
            world.ask("restart")
            world.until(lambda: world.status()["faults"] == [], 15.0, "no fault any more")
            world.until(lambda: len(workers(world)) == 2, 20.0, "the old ones to be gone")
        assert not hammer.failures


def test_fewer_workers_after_a_takeover_let_the_others_finish(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "3") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        with Hammer(world.gateway, BODY, path=INFER, fresh=0, kept=6) as hammer:
            world.kill()
            world.flags = (*world.flags[:-1], "1")
            world.up()
            world.until(lambda: len(workers(world)) == 1, 20.0, "the others to be gone")
        assert not hammer.failures


def test_an_old_worker_that_retires_goes_on_under_the_next_control_process(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        deploy_streams(world)
        hang_up = threading.Event()
        tunnel = Aside(lambda: talk(world.gateway, hang_up))
        world.until(lambda: workers(world)[0]["connections"] == 1, 10.0, "the tunnel")
        world.ask("restart")
        world.kill()
        world.up()
        assert [(each["worker"], each["state"]) for each in workers(world)] == [
            ("g0.2", "serving"),
            ("g0", "retiring"),
        ]
        hang_up.set()
        assert tunnel.end(30.0) > 1
        world.until(lambda: len(workers(world)) == 1, 15.0, "the old one to end")


def test_a_full_backlog_is_answered_when_its_worker_is_reported_to_end(tmp_path: Path) -> None:
    """SIGTERM while connections wait in the socket: who has sent a request gets an answer, from this worker or the
    next."""
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "8", "--wait")
        gateway = world.gateway
        pid = world.living()["gateway-g0"]
        os.kill(pid, signal.SIGSTOP)
        lines = [send(gateway) for _ in range(100)]
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGCONT)
        answers = [status_of(line) for line in lines]
        assert answers == [200] * 100
        world.until(lambda: workers(world)[0]["pid"] not in (0, pid), 10.0, "another worker")


@pytest.mark.early
def test_a_route_table_every_fifty_milliseconds_drops_no_request(tmp_path: Path) -> None:
    """Functions come and go beside the one under load, and it gets new revisions itself."""
    with deployment(tmp_path, "--gateway-workers", "2") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        first = world.status()["table"]
        with Hammer(world.gateway, BODY, path=INFER, fresh=1, kept=3) as hammer, world.sdk() as sdk:
            turn = other_functions(world)
            due = time.monotonic()
            for _ in range(100):
                turn(sdk)
                due = max(due + 0.05, time.monotonic() - 0.05)
                time.sleep(max(0.0, due - time.monotonic()))
            world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        assert not hammer.failures
        changes = int(world.status()["table"].partition(".")[2]) - int(first.partition(".")[2])
        assert changes >= 40, "tables did change meanwhile"


def other_functions(world: Deployment) -> Callable[[Any], None]:
    """Each call changes the route table: a function that sleeps is deployed, the one before it deleted."""
    manifest = (
        "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {{name: other{}}}\n"
        "spec: {{server: {{command: [cat]}}}}\n"
    )
    numbers = iter(range(10_000))
    there: list[str] = []

    def turn(sdk: Any) -> None:
        if there:
            sdk.delete(there.pop())
        else:
            number = next(numbers) % 7
            sdk.deploy(manifest.format(number), base=world.folder, annotations={"initial-scale": "0"})
            there.append(f"other{number}")

    return turn


def send(gateway: str) -> socket.socket:
    """A connection that has sent a whole request."""
    host, _, port = gateway.partition("://")[2].rpartition(":")
    line = socket.create_connection((host, int(port)), timeout=30.0)
    line.sendall(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (INFER.encode(), len(BODY), BODY)
    )
    return line


def status_of(line: socket.socket) -> int | str:
    with line:
        try:
            return int(line.recv(65536).split(b" ", 2)[1])
        except (OSError, IndexError) as error:
            return f"{type(error).__name__}: {error}"


def backlog(gateway: str) -> int:
    """Connections that were not accepted yet: the receive queue of a listening socket (state 0A)."""
    wanted = f":{int(gateway.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[1].endswith(wanted) and row[3] == "0A")
