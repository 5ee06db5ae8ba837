"""Drain, revive, stop and start of real gateway workers and queue_proxies, under requests."""

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import Patience, within
from tests.support.live.live_edge import TOKEN, Edge, Replica, begin, client, edge, infer, run, table

pytestmark = pytest.mark.live


async def ready(world: Edge, *replicas: Replica) -> None:
    await world.gateway_ready()
    await asyncio.gather(*(world.replica_ready(replica) for replica in replicas))
    await world.put_table(table(1, *replicas))


def test_sigterm_of_a_gateway_answers_everything_it_accepted() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="2")
            await ready(world, replica)
            async with world.client() as http:
                assert (await infer(http)).status_code == 200
                requests = [begin(infer(http, x_work_ms="20")) for _ in range(40)]
                await world.arrived(41)
                world.workers[0].send_signal(signal.SIGTERM)
                answers = await asyncio.gather(*requests)
                assert Counter(answer.status_code for answer in answers) == {200: 40}
                assert await asyncio.to_thread(world.workers[0].wait, 10.0) == 0

    run(main())


def test_a_drain_finishes_what_runs_refuses_what_comes_and_can_be_taken_back() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            one = world.start_replica(limit="2")
            await ready(world, one)
            async with aclosing(world.events(one)) as events, world.client() as http:
                assert (await anext(events))["state"] == "ready"
                running = [begin(infer(http, x_work_ms="2500")) for _ in range(2)]
                await world.working(one, 2)
                assert (await world.order(one, "drain", epoch=5)).json()["state"] == "draining"
                waiting = begin(infer(http))
                assert [answer.status_code for answer in await asyncio.gather(*running)] == [200, 200]
                assert [(await anext(events))["state"] for _ in range(2)] == ["draining", "drained"]
                assert not waiting.done()
                assert (await world.order(one, "revive", epoch=5)).json()["state"] == "ready"
                assert (await anext(events))["state"] == "ready"
                async with within(5.0):
                    assert (await waiting).status_code == 200

    run(main())


def test_while_one_drains_the_other_takes_over_without_a_failure() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway(2)
            one, two = world.start_replica(limit="2"), world.start_replica(limit="2")
            await ready(world, one, two)
            async with world.client() as http:
                requests = [begin(infer(http, x_work_ms="60")) for _ in range(100)]
                await world.working(one)  # seen while it works, also by a slow machine
                await world.order(one, "drain", epoch=5)
                answers = await asyncio.gather(*requests)
                assert Counter(answer.status_code for answer in answers) == {200: 100}
                one.proxy.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(one.proxy.wait, 10.0) == 0
                assert (await infer(http)).status_code == 200
            assert (await world.stats(two))["most"] <= 2

    run(main())


def test_sigterm_of_a_queue_proxy_drains_it_before_it_ends() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(limit="1")
            await world.replica_ready(replica)
            async with client(replica.address) as http:
                running = begin(infer(http, x_work_ms="2500"))
                await world.working(replica)
                replica.proxy.send_signal(signal.SIGTERM)
                assert (await running).status_code == 200
            assert await asyncio.to_thread(replica.proxy.wait, 10.0) == 0

    run(main())


def test_orders_of_an_older_control_process_and_older_tables_are_ignored() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await ready(world, replica)
            for what in ("drain", "revive", "limit"):
                assert (await world.order(replica, what, epoch=4, limit=9)).status_code == 409
            assert (await world.order(replica, "limit", epoch=6, limit=3)).json()["limit"] == 3
            assert (await world.order(replica, "drain", epoch=5)).status_code == 409
            assert await world.put_table(table(9, epoch=4)) == [{"epoch": 5, "number": 1}]
            async with world.client() as http:
                assert (await infer(http)).status_code == 200

    run(main())


def test_a_worker_starts_from_the_table_on_its_disk_and_a_deleted_function_frees_who_waits() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(limit="1")
            await world.replica_ready(replica)
            world.start_gateway(table=table(3, replica))
            async with world.client() as http:
                await world.gateway_ready()
                assert (await infer(http)).status_code == 200
                sample = await world.sample(world.gateway_admin())
                assert (sample["table_epoch"], sample["table_number"]) == (5, 3)
                running = begin(infer(http, x_work_ms="1500"))
                await world.working(replica)
                waiting = begin(infer(http))
                await world.arrived(3)
                gone = table(4, replica)
                await world.put_table(type(gone)(epoch=5, number=4, workers=1))
                assert (await waiting).status_code in (404, 503)
                assert (await running).status_code == 200, "what runs goes on"
                assert (await infer(http)).status_code == 404

    run(main())


def test_strangers_wait_in_the_replicas_own_queue_up_to_ten_times_its_limit() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(limit="1")
            await world.replica_ready(replica)
            async with client(replica.address) as http:
                first = begin(infer(http, x_work_ms="2000"))
                await world.working(replica)
                answers = await asyncio.gather(first, *(infer(http, x_work_ms="1") for _ in range(12)))
            assert Counter(answer.status_code for answer in answers) == {200: 11, 503: 2}
            assert (await world.stats(replica))["most"] == 1
            sample = await world.sample(replica.admin)
            assert (sample["requests"], sample["inferences"]) == (13, 11)

    run(main())


def test_control_headers_mean_nothing_without_the_token() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(limit="1")
            await world.replica_ready(replica)
            async with client(replica.address) as http:
                answer = await infer(http, tidegate_credit="1")
                assert answer.status_code == 200, "a stranger: the number is not looked at"
                assert not [name for name in answer.headers if name.startswith("tidegate-")]
                upgrade = {"connection": "upgrade", "upgrade": "tidegate-slots", "tidegate-token": "guess"}
                assert (await http.get("/tidegate/slots", headers=upgrade)).status_code == 403
                stale = await infer(http, tidegate_token=TOKEN, tidegate_credit="12345")
                assert (stale.status_code, stale.headers["tidegate-outcome"]) == (409, "not-started")
            assert (await world.stats(replica))["total"] == 1

    run(main())


def test_knatives_probes_are_answered_by_the_proxy() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(limit="1")
            await world.replica_ready(replica)
            kubelet = {"user-agent": "kube-probe/1.30", "k-network-probe": "queue"}
            async with client(replica.address) as http:
                answer = await http.get("/", headers=kubelet)
                assert (answer.status_code, answer.text) == (200, "queue")
                answer = await http.get("/", headers={"k-network-probe": "probe", "k-network-hash": "h"})
                assert (answer.status_code, answer.headers["k-network-hash"]) == (200, "h")
                assert (await http.get("/", headers={"user-agent": "kube-probe/1.30"})).status_code == 400
                await world.order(replica, "drain", epoch=5)
                answer = await http.get("/", headers=kubelet)
                assert (answer.status_code, answer.text) == (503, "shutting down")
            assert (await world.sample(replica.admin))["requests"] == 0

    run(main())


def test_auto_concurrency_is_what_the_server_declares_else_four() -> None:
    async def main() -> None:
        async with edge() as world:
            declares = world.start_replica(limit="auto", declared=7)
            silent = world.start_replica(limit="auto")
            assert (await world.replica_ready(declares))["limit"] == 7
            assert (await world.replica_ready(silent))["limit"] == 4

    run(main())


def test_a_model_that_never_comes_fails_the_start_with_what_was_seen_last() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(model=False, settings={"TIDEGATE_START_TIMEOUT_SECONDS": "0.5"})
            failed = await world.reached(replica, "failed")
            assert "not ready within 0.5 s" in failed["message"]
            async with client(replica.address) as http:
                answer = await http.post("/x")
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "start_failed")
            replica.proxy.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(replica.proxy.wait, 10.0) == 0

    run(main())


def test_the_warm_up_request_is_sent_before_ready(tmp_path: Path) -> None:
    body = tmp_path / "warm.json"
    body.write_text('{"inputs":[]}')

    async def main() -> None:
        async with edge() as world:
            warm = {"TIDEGATE_WARMUP_FILE": str(body), "TIDEGATE_WARMUP_PATH": "/v2/models/m/infer"}
            replica = world.start_replica(settings=warm)
            event = await world.replica_ready(replica)
            assert event["phases"]["warm_s"] > 0
            stats = await world.stats(replica)
            assert [one["path"] for one in stats["seen"]] == ["/v2/models/m/infer"]
            missing = world.start_replica(settings={"TIDEGATE_WARMUP_FILE": str(tmp_path / "none.json")})
            assert "none.json" in (await world.reached(missing, "failed"))["message"]

    run(main())


def test_admin_endpoints_answer_in_their_shapes() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await ready(world, replica)
            async with client(world.gateway_admin()) as http:
                metrics = await http.get("/metrics")
                assert metrics.headers["content-type"].startswith("text/plain")
                assert 'tidegate_gateway_route_table_epoch{worker="g0"} 5' in metrics.text
                assert (await http.put("/table", content=b"{")).status_code == 400
                assert (await http.get("/nothing")).status_code == 404
                first, second = (await http.get("/sample")).json(), (await http.get("/sample")).json()
                assert (first["sequence"], second["sequence"]) == (1, 2)
            async with client(replica.admin) as http:
                assert "tidegate_queue_proxy_limit" in (await http.get("/metrics")).text
                assert (await http.post("/drain", content=b"")).status_code == 400
                assert (await http.post("/limit", json={"epoch": 5})).status_code == 400
            async with world.client() as http:
                for path in ("/metrics", "/sample", "/healthz"):
                    assert (await http.get(path)).status_code == 404, "not at the front door"

    run(main())


def test_only_a_replica_in_a_pod_is_drained_by_the_hook_that_needs_no_token() -> None:
    async def main() -> None:
        async with edge() as world:
            outside, inside = world.start_replica(), world.start_replica(settings={"TIDEGATE_PRE_STOP": "on"})
            await asyncio.gather(*(world.replica_ready(replica) for replica in (outside, inside)))
            async with client(outside.admin) as http:
                assert (await http.get("/wait-for-drain")).status_code == 404
                assert (await http.get("/sample")).json()["state"] == "ready"
            async with client(inside.admin) as http:
                assert (await http.get("/wait-for-drain")).text == "drained"

    run(main())


def test_the_hook_of_a_pod_behind_a_service_waits_before_it_drains() -> None:
    async def main() -> None:
        async with edge() as world:
            delay = {"TIDEGATE_PRE_STOP": "on", "TIDEGATE_PRE_STOP_DELAY_SECONDS": "2"}
            replica = world.start_replica(settings=delay)
            await world.replica_ready(replica)
            async with client(replica.admin) as http, client(replica.admin) as other:
                async with asyncio.TaskGroup() as tasks:
                    hook = tasks.create_task(http.get("/wait-for-drain"))
                    for _ in range(3):
                        assert (await other.get("/sample")).json()["state"] == "ready", "requests come until then"
                assert hook.result().text == "drained"

    run(main())


def test_metadata_is_answered_from_a_copy_while_the_function_sleeps() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await ready(world, replica)
            async with world.client() as http:
                known = (await http.get("/v2/models/m")).json()
                assert known["platform"] == "scripted"
                await asyncio.sleep(0.5)  # the copy is fetched beside the answer
                await world.put_table(table(2))
                async with within(5.0):
                    assert (await http.get("/v2/models/m")).json() == known

    run(main())


def test_kill_of_a_worker_frees_its_slots_and_its_successor_serves_who_connected_meanwhile() -> None:
    async def main() -> None:
        async with edge() as world:
            replica = world.start_replica(limit="1")
            await world.replica_ready(replica)
            world.start_gateway(table=table(1, replica))
            await world.gateway_ready()
            async with world.client() as http:
                running = begin(infer(http, x_work_ms="5000"))
                await world.working(replica)
                world.workers[0].kill()
                with pytest.raises(httpx.TransportError):
                    await running
            async with world.client() as http:
                meanwhile = begin(infer(http))
                await asyncio.sleep(0.1)
                world.start_again(0)
                async with within(12.0):
                    assert (await meanwhile).status_code == 200

    run(main())


def test_a_stopped_worker_costs_the_others_its_idle_credit_for_a_moment_only() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway(2, apart=True)
            replica = world.start_replica(limit="1")
            await world.gateway_ready()
            await world.replica_ready(replica)
            await world.put_table(table(1, replica, workers=2))
            async with world.client(0) as stopped, world.client(1) as other:
                assert (await infer(other)).status_code == 200
                assert (await infer(stopped)).status_code == 200, "it holds the credit from now on"
                world.workers[0].send_signal(signal.SIGSTOP)
                patience = Patience(2.0)
                assert (await infer(other)).status_code == 200
                assert not patience.is_over, "not until somebody wakes the other one"
                world.workers[0].send_signal(signal.SIGCONT)
                answers = await asyncio.gather(*(infer(one) for one in (stopped, other) * 10))
                assert Counter(answer.status_code for answer in answers) == {200: 20}
            assert (await world.stats(replica))["most"] == 1

    run(main())


def test_a_second_signal_ends_a_worker_at_once() -> None:
    async def main() -> None:
        async with edge() as world:
            world.start_gateway()
            replica = world.start_replica(limit="1")
            await ready(world, replica)
            async with world.client() as http:
                running = begin(infer(http, x_work_ms="15000"))
                await world.working(replica)
                world.workers[0].send_signal(signal.SIGTERM)
                await asyncio.sleep(0.5)  # two signals at once would be one
                world.workers[0].send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(world.workers[0].wait, 10.0) == 0
                with pytest.raises(httpx.TransportError):
                    await running

    run(main())


def test_wrong_configuration_is_reported_on_standard_error(tmp_path: Path) -> None:
    config = tmp_path / "g0.json"
    config.write_text(json.dumps({"worker": "g0", "listen_fd": 3, "admin": "/x", "table_file": "/y", "token": "t"}))
    config.write_text(config.read_text().replace("}", ', "limits": {"head-bytes": 1, "headers": -1}}'))
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "tidegate.gateway.main", "--config", str(config)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "limits.head-bytes" in ended.stderr
    assert "limits.headers" in ended.stderr
