"""What goes on and what stops when a part of a cluster is away, with load running; both ends' journals are compared."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.live.cluster import Node, install_account
from tests.support.live.control_plane import ControlPlane, write_kubeconfig
from tests.support.live.deployment import Deployment, deployment, places
from tests.support.live.journaled import JournaledLoad, most_at_once, write_server
from tests.support.live.pods import SETTINGS, make_namespace
from tests.support.live.redis_server import RedisServer
from tests.support.live.remote_gateway import remote_gateways
from tests.support.live.wire import Wire
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.resources.leases import NAME as LEASE
from tidegate.deploy.kubernetes.resources.leases import epoch_of, holder_of

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs(tool="cluster"),
    pytest.mark.timeout(400),
]
LEASE_S = 9
SLOTS = 2
"""Of a replica; its model server would run twice as many at once."""
AWAY_S = 8.0
"""Longer than a leader may write without its Lease, which is two thirds of it."""


@dataclass
class Bench:
    plane: ControlPlane
    node: Node
    space: str
    folder: Path
    store: RedisServer
    config: Path
    """The kubeconfig of control processes that are started."""
    token: str

    @contextmanager
    def control(self, name: str, *flags: str) -> Iterator[Deployment]:
        """A control process of the one deployment, over a state directory of its own."""
        folder = self.folder / name
        folder.mkdir()
        given = ("--kubernetes-image", "tidegate:test", "--kubernetes-namespace", self.space)
        store = ("--store-url", self.store.url, "--store-name", "blue")
        lease = ("--kubernetes-lease", f"{LEASE_S}s", "--kubernetes-python", SETTINGS.python)
        with deployment(folder, *given, *store, *lease, *places(folder, 3), *flags) as found:
            yield found

    def load(self, control: Deployment, **options: Any) -> JournaledLoad:
        return JournaledLoad(control.gateway, self.folder, **options)

    def serve(self, control: Deployment, *flags: str) -> None:
        control.up(as_program=True)
        control.deploy(write_server(self.folder), "--min-scale", "1", "--max-scale", "3", *flags, "--wait")
        assert control.infer(timeout=60.0).status_code in (200, 400)

    def get(self, path: str) -> Object:
        return self.node.do(lambda api: api.get(path))

    def pods(self) -> dict[str, str]:
        """Uids of the replicas' Pods by name."""
        listed = self.get(f"/api/v1/namespaces/{self.space}/pods")["items"]
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in listed}

    def lease(self) -> Object:
        return self.get(f"/apis/coordination.k8s.io/v1/namespaces/{self.space}/leases/{LEASE}")


@pytest.fixture
def bench(plane: ControlPlane, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    space = node.do(make_namespace)
    token = node.do(lambda api: install_account(api, space))
    config = tmp_path / "kubeconfig"
    write_kubeconfig(config, plane.url, plane.authority, token=token)
    monkeypatch.setenv("KUBECONFIG", str(config))
    store = RedisServer(tmp_path, "--appendonly", "no")
    try:
        yield Bench(plane, node, space, tmp_path, store, config, token)
    finally:
        store.kill()
        node.clear(space)


def grows(load: JournaledLoad, control: Deployment, more: int = 20) -> None:
    before = load.count()
    control.until(lambda: load.count() >= before + more, 60.0, f"{more} more answers; lost: {load.lost}")


def test_a_standby_takes_over_from_a_leader_that_is_killed(bench: Bench) -> None:
    """Nothing is lost, no Pod is made twice, and the first one's epoch is over."""
    with bench.control("one") as one, bench.control("two") as two:
        bench.serve(one)
        first, epoch = bench.pods(), epoch_of(bench.lease())
        two.begin()
        two.until(lambda: "this process stands by" in two.log.read_text(), 30.0, "the second one to stand by")
        with bench.load(one).running() as load:
            grows(load, one)
            assert bench.lease()["spec"]["holderIdentity"] == one.state.name
            one.kill()
            two.until(lambda: two.is_up, 60.0, "the standby to lead")
            assert holder_of(bench.lease()) == two.state.name
            assert epoch_of(bench.lease()) > epoch
            grows(load, two)
            assert bench.pods() == first, "its replicas were taken over as they are"
            pod = bench.get(f"/api/v1/namespaces/{bench.space}/pods/{next(iter(first))}")
            assert int(pod["metadata"]["annotations"]["tidegate.dev/epoch"]) == epoch_of(bench.lease())
            with bench.load(two).running() as through_the_new:
                grows(through_the_new, two)
            assert not through_the_new.lost
        load.check()
        assert two.stop() == 0


def test_a_leader_is_killed_while_three_gateways_serve(bench: Bench) -> None:
    """``kill -9``: the gateways apart go on with their last table, and the standby finds them and every Pod. The slots
    of a replica are taken by all gateways together, and never exceeded."""
    remote = ("--gateway-workers", "0")
    with bench.control("one", *remote) as one, bench.control("two", *remote) as two:
        one.up(as_program=True)
        with remote_gateways(one, bench.store.port, 3) as gateways:
            server = write_server(bench.folder, pause_s=0.05)
            one.deploy(server, "--concurrency", str(SLOTS), "--min-scale", "2", "--max-scale", "2", "--wait")
            first, epoch = bench.pods(), epoch_of(bench.lease())
            one.until(lambda: all(each.infer().status_code in (200, 400) for each in gateways), 30.0, "a route")
            two.begin()
            two.until(lambda: "this process stands by" in two.log.read_text(), 30.0, "the second one to stand by")
            loads = [JournaledLoad(each.url or "", bench.folder, clients=6) for each in gateways]
            with loads[0].running(), loads[1].running(), loads[2].running():
                for each in loads:
                    grows(each, one)
                one.kill()
                killed = time.monotonic()
                two.until(lambda: two.is_up, 60.0, "the standby to lead")
                led = time.monotonic()
                assert epoch_of(bench.lease()) > epoch
                assert bench.pods() == first, "its replicas were taken over as they are"
                two.until(lambda: two.status("echo")["ready"] == 2, 30.0, "both replicas to be known")
                two.until(lambda: len(two.status()["gateways"]) == 3, 30.0, "the gateways to be found")
                for each in loads:
                    grows(each, two)
            for each in loads:
                each.check()
            assert most_at_once(bench.folder) == SLOTS, "more clients than slots: all are taken, and no more"
            counts = [each.count() for each in loads]
            sys.stdout.write(f"\nthe standby led {led - killed:.1f} s after the kill; {counts} answered, none lost\n")
            two.cli("down")


def test_a_rolling_restart_of_the_control_process_keeps_every_pod(bench: Bench) -> None:
    """SIGTERM gives the Lease back when all is handed over: the standby leads at once. Gateways apart serve on."""
    remote = ("--gateway-workers", "0")
    with bench.control("one", *remote) as one, bench.control("two", *remote) as two:
        one.up(as_program=True)
        with remote_gateways(one, bench.store.port, 2) as gateways:
            one.deploy(write_server(bench.folder), "--min-scale", "2", "--max-scale", "3", "--wait")
            first = bench.pods()
            assert len(first) == 2
            one.until(lambda: all(each.infer().status_code in (200, 400) for each in gateways), 30.0, "a route")
            loads = [JournaledLoad(each.url or "", bench.folder) for each in gateways]
            with loads[0].running(), loads[1].running():
                restart(bench, one, two)
                assert bench.pods() == first
                for each in loads:
                    grows(each, two)
                restart(bench, two, one)
                one.until(lambda: one.status("echo")["ready"] == 2, 30.0, "both replicas to be known")
                for each in loads:
                    grows(each, one)
            for each in loads:
                each.check()
            assert bench.pods() == first
            one.cli("down")
            one.until(lambda: not bench.pods(), 60.0, "no Pod: it was taken down")


def restart(bench: Bench, old: Deployment, new: Deployment) -> None:
    """Another control process stands by, the leader ends in order, and the other one leads."""
    before = new.log.read_text() if new.log.exists() else ""
    new.begin()
    new.until(lambda: "this process stands by" in new.log.read_text()[len(before) :], 30.0, "one that stands by")
    epoch, began = epoch_of(bench.lease()), time.monotonic()
    assert old.stop() == 0
    ended = time.monotonic()
    assert "Pods of replicas go on" in old.log.read_text()
    new.until(lambda: new.is_up, 30.0, "the standby to lead")
    led = time.monotonic()
    sys.stdout.write(f"\nended {ended - began:.1f} s after SIGTERM, the standby answered {led - ended:.1f} s later\n")
    assert (holder_of(bench.lease()), epoch_of(bench.lease())) == (new.state.name, epoch + 1)


def test_the_api_server_is_away_while_requests_are_served(bench: Bench) -> None:
    away(bench, AWAY_S)


@pytest.mark.deep
def test_the_api_server_is_away_for_half_a_minute(bench: Bench) -> None:
    away(bench, 30.0)


def away(bench: Bench, seconds: float) -> None:
    """Requests are served, nothing is scaled, and the same leader goes on afterwards."""
    with bench.control("one") as one:
        bench.serve(one)
        first, lease = bench.pods(), bench.lease()
        with bench.load(one).running() as load:
            grows(load, one)
            bench.plane.kill("kube-apiserver")
            began = time.monotonic()
            try:
                one.until(lambda: "Lease" in str(one.status()), 30.0, "the status to say that the Lease is not renewed")
                while time.monotonic() < began + seconds:
                    grows(load, one)
            finally:
                bench.plane.start_api_server()
            grows(load, one)
            one.until(lambda: "Lease" not in str(one.status()), 60.0, "the Lease to be renewed")
            assert bench.pods() == first
            assert holder_of(bench.lease()) == one.state.name
            assert epoch_of(bench.lease()) == epoch_of(lease), "nothing else has led meanwhile"
            one.deploy(write_server(bench.folder), "--min-scale", "2", "--max-scale", "3")
            one.until(lambda: len(bench.pods()) >= 2, 60.0, "what was ordered afterwards")
            grows(load, one)
        load.check()
        assert one.stop() == 0


def test_a_leader_that_is_cut_off_stops_writing_and_another_one_leads(bench: Bench) -> None:
    """What it has left to write when the network is back is refused; its replicas are the other one's."""
    with bench.control("one") as one, bench.control("two") as two, Wire(bench.plane.port) as wire:
        direct = bench.config.read_text()
        write_kubeconfig(bench.config, wire.url, bench.plane.authority, token=bench.token)
        bench.serve(one)
        bench.config.write_text(direct)  # The standby's way is another one.
        two.begin()
        two.until(lambda: "this process stands by" in two.log.read_text(), 30.0, "the second one to stand by")
        first = bench.pods()
        with bench.load(one).running() as load:
            grows(load, one)
            with wire.cut():
                one.until(lambda: "Lease" in str(one.status()), 60.0, "the first one to say that it may not write")
                two.until(lambda: two.is_up, 60.0, "the standby to lead")
                grows(load, two)
                with bench.load(two).running() as through_the_second:
                    grows(through_the_second, two)
            one.until(lambda: one.process is None or one.process.poll() is not None, 60.0, "the first one to end")
            assert one.process is not None
            assert one.process.poll() == 1
            assert "another control process leads" in one.log.read_text()
            assert bench.pods() == first, "it touched no replica"
            with bench.load(two).running() as after:
                grows(after, two)
        assert not through_the_second.lost | after.lost
        # Its gateways were drained: they refused what came later.
        load.check(may_lose=lambda text: "ConnectError" in text)
        assert two.stop() == 0


def test_a_node_is_lost_and_its_replica_is_replaced(bench: Bench) -> None:
    """Other replicas serve at once; the plan replaces the lost one when Kubernetes has noticed."""
    with bench.control("one") as one, Node(bench.plane, "fake-2").running() as second:
        bench.node.cordon()
        bench.serve(one)
        on_second = bench.pods()
        second.cordon()
        bench.node.cordon(is_cordoned=False)
        one.deploy(write_server(bench.folder), "--min-scale", "2", "--max-scale", "3", "--wait")
        one.until(lambda: len(second.pods) + len(bench.node.pods) >= 2, 60.0, "a replica on each node")
        assert on_second
        with bench.load(one, clients=4).running() as load:
            grows(load, one)
            lost_at = time.monotonic()
            second.lose()
            one.until(lambda: load.answered_since(lost_at + 5.0) > 20, 60.0, "answers after the loss")
            one.until(lambda: len(bench.node.pods) >= 2, 90.0, "another replica on the node that is left")
            one.until(lambda: one.status("echo")["ready"] >= 2, 60.0, "two ready replicas")
            grows(load, one)
        # What the node had in hand went with it: at most its slots, and at most one probe's time long.
        assert len(load.lost) <= 8, load.lost
        load.check(may_lose=lambda _: True)


def test_a_node_is_drained_under_load_and_nothing_is_lost(bench: Bench) -> None:
    """As ``kubectl drain`` does it: no new Pod comes, each Pod is evicted, and what a budget refuses is tried again.
    What waits meanwhile is served by the other node."""
    with bench.control("one") as one, Node(bench.plane, "fake-2").running() as second:
        second.cordon()
        one.up(as_program=True)
        one.deploy(write_server(bench.folder), "--min-scale", "2", "--max-scale", "2", "--wait")
        one.deploy(one.handler(name="asleep"), "--initial-scale", "0", name="asleep")
        first = bench.pods()
        assert len(first) == 2
        try:
            with bench.load(one, clients=4).running() as load, ThreadPoolExecutor(1) as aside:
                grows(load, one)
                second.cordon(is_cordoned=False)
                bench.node.cordon()
                cold = aside.submit(one.infer, name="asleep", timeout=60.0)
                refused = drain(bench, one, "fake-1")
                assert cold.result(60.0).status_code == 200
                one.until(lambda: one.status("echo")["ready"] == 2, 60.0, "two ready replicas")
                assert refused > 0, "one replica of the group left at a time"
                assert not first.keys() & bench.pods().keys()
                grows(load, one)
            load.check()
        finally:
            bench.node.cordon(is_cordoned=False)
        assert one.stop() == 0


def drain(bench: Bench, control: Deployment, node: str) -> int:
    """Evicts every Pod of a node; returns how often a budget has refused it."""
    path, refused = f"/api/v1/namespaces/{bench.space}/pods", 0

    def of_node() -> list[Object]:
        return [each for each in bench.get(path)["items"] if each["spec"].get("nodeName") == node]

    def evict() -> bool:
        nonlocal refused
        for each in of_node():
            name, meta = each["metadata"]["name"], each["metadata"]
            if "deletionTimestamp" in meta:
                continue
            assert any(owner.get("controller") for owner in meta["ownerReferences"]), "kubectl drain would need --force"
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            try:
                bench.node.do(partial(KubernetesApi.create, path=f"{path}/{name}/eviction", body=body))
            except RefusedError as error:
                assert error.status in (404, 429), error
                refused += error.status == 429
        return not of_node()

    control.until(evict, 90.0, "the node to be empty")
    return refused
