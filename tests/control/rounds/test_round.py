"""The control round, as timelines: what is started, what takes the traffic, what is reported to those who wait."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.worlds.control_world import CPU, ControlWorld, function, in_world
from tidegate.control.rounds.roles import traffic_split
from tidegate.control.rounds.world import ReplicaIndex
from tidegate.control.state.registry import Deployed
from tidegate.control.views.functions import FunctionState
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import WHOLE, AcceleratorKind, Room
from tidegate.function import Revision, Scaling
from tidegate.records.gateway_sample import Activation, ColdStartSeen, GatewaySample
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.route_table import FailureKind

READY, STARTING, DRAINING = ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING


def state_of(world: ControlWorld, name: str = "echo") -> FunctionState:
    deployed = world.registry.get(name)
    assert deployed is not None
    return world.views.function(deployed, "http://127.0.0.1:8080", "localhost").state


def test_a_deploy_starts_the_initial_scale_and_sleeps_when_none_comes(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        assert [each.state for each in world.replicas()] == [STARTING]
        assert state_of(world) is FunctionState.STARTING
        await world.advance(1.0)
        assert state_of(world) is FunctionState.READY
        assert world.view().price_per_hour == 0.04
        deployed = world.registry.get("echo")
        assert deployed is not None
        assert deployed.proven
        await world.advance(14.0)
        assert world.replicas() == []
        assert state_of(world) is FunctionState.ASLEEP
        assert world.view().price_per_hour == 0, "sleep costs nothing"
        assert world.shares() == {"echo-00001": 100.0}

    in_world(tmp_path, tell)


def test_where_no_replica_may_sleep_the_states_of_idle_ones_say_why(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.start_up_s = 3.0
        await world.deploy(function())
        await world.advance(4.0)
        (group,) = world.view().revisions[0].groups
        assert group.ready, "none has been surplus yet"
        assert group.idle_states == "a start takes 3 s: surplus ones end (a device keeps its memory)"
        await world.advance(20.0)
        assert world.replicas() == []

    in_world(tmp_path, tell, accelerator=replace(CPU, name="gpu", kind=AcceleratorKind.NVIDIA))


def test_the_table_lists_a_replica_from_its_first_moment(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        (replica,) = world.replicas()
        (group,) = world.gateways.tables[-1].functions[0].revisions[0].groups
        assert [route.id for route in group.replicas] == [replica.id]
        assert group.replicas[0].address == replica.address

    in_world(tmp_path, tell)


def test_any_number_of_pushes_cause_one_start_at_once(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(initial_scale=0)))
        assert world.replicas() == []
        for _ in range(4):
            world.activate("echo-00001", waiting=50)
        await world.settle()
        assert len(world.replicas()) == 1, "no tick was waited for, and four workers are one reason"
        for _ in range(4):
            world.activate("echo-00001", waiting=50)
            await world.settle()
        assert len(world.replicas()) == 1

    in_world(tmp_path, tell)


def test_a_push_during_the_last_drain_takes_the_replica_back(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(2.0)
        (replica,) = world.replicas()
        world.backend.begin_work(replica.id)
        await world.advance(12.0)
        assert [each.state for each in world.replicas()] == [DRAINING]
        assert state_of(world) is FunctionState.DRAINING
        world.activate("echo-00001")
        await world.settle()
        assert [(each.id, each.state) for each in world.replicas()] == [(replica.id, READY)]

    in_world(tmp_path, tell)


@pytest.mark.parametrize("is_at_work", [True, False])
def test_an_order_to_wake_that_meets_the_last_drain_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_work: bool
) -> None:
    """The gateway hears of the drain first, and orders once: its request went to another variant and waits nowhere."""

    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(2.0)
        (replica,) = world.replicas()
        if is_at_work:
            world.backend.begin_work(replica.id)
        remove, ordered = world.backend.remove, []

        async def drain(replica_id: str) -> None:
            ordered.append(replica_id)
            world.activate("echo-00001")
            world.answered("echo-00001")
            await remove(replica_id)

        monkeypatch.setattr(world.backend, "remove", drain)
        await world.advance(12.0)
        assert ordered == [replica.id]
        assert [each.state for each in world.replicas()] == [READY]
        assert (world.replicas()[0].id == replica.id) is is_at_work, "taken back, or too late for that"
        await world.advance(4.0)
        assert [each.state for each in world.replicas()] == [READY]
        assert ordered == [replica.id], "it stays for its time"

    in_world(tmp_path, tell)


def test_a_crowd_hastens_a_round_once_a_second_and_starts_nothing(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        def is_hastened() -> bool:
            world.round._wake.clear()
            world.round.activated(crowd)
            return world.round._wake.is_set()

        crowd = Activation(
            function="echo",
            revision="echo-00001",
            waiting=9,
            waiting_inferences=9,
            oldest_waiting_s=0.1,
            is_crowd=True,
        )
        world.backend.set_accelerators([CPU], host_cores=(0, 1, 2))
        await world.deploy(function())
        assert not is_hastened(), "no replica is ready"
        await world.advance(2.0)
        (replica,) = world.replicas()
        assert is_hastened() and not is_hastened()
        await world.advance(1.0)
        assert is_hastened()
        await world.settle()
        assert [each.id for each in world.replicas()] == [replica.id]

    in_world(tmp_path, tell)


def test_a_push_for_something_unknown_is_no_fault(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.activate("ghost-00001")
        await world.settle()
        assert world.replicas() == []
        assert world.faults.texts() == ()

    in_world(tmp_path, tell)


def test_a_new_revision_takes_over_when_it_is_ready_and_the_old_one_leaves(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(2.0)
        (old,) = world.replicas()
        world.backend.start_up_s = 3.0
        await world.deploy(function(timeout_s=10.0))
        assert (world.shares()["echo-00001"], world.shares()["echo-00002"]) == (100.0, 0.0)
        await world.advance(2.5)
        assert world.shares() == {"echo-00001": 100.0, "echo-00002": 0.0}, "not ready yet"
        world.gateways.lags = True
        await world.advance(2.0)
        assert world.shares() == {"echo-00002": 100.0, "echo-00001": 0.0}
        assert old.id in [each.id for each in world.replicas(READY)], "a worker still sends it requests"
        world.gateways.applied = world.gateways.tables[-1].version
        world.activate("echo-00001")
        await world.advance(2.0)
        assert old.id in [each.id for each in world.replicas(READY)], "a request still waits for it"
        world.answered("echo-00001")
        world.gateways.lags = False
        await world.advance(3.0)
        assert [each.revision for each in world.replicas()] == ["echo-00002"]
        assert world.shares() == {"echo-00002": 100.0}

    in_world(tmp_path, tell)


def test_what_a_deleted_function_would_have_is_not_logged(tmp_path: Path) -> None:
    """Its window of time is open and asks for two; nothing carries that out any more."""

    async def tell(world: ControlWorld) -> None:
        windows = Scaling(min_scale_windows="0 * * * * | 1h | UTC | 2")
        await world.deploy(function(scaling=windows))
        await world.advance(3.0)
        assert len(world.replicas(READY)) == 2
        autoscaler = world.loop.autoscaler.core
        world.activate("echo-00001")
        before = autoscaler.decisions("echo", 100)
        await world.registry.delete("echo")
        world.loop.world.sync()
        await world.advance(3.0)
        after = autoscaler.decisions("echo", 100)
        assert after in (before, [])

    in_world(tmp_path, tell)


def test_a_new_revision_that_cannot_start_leaves_the_old_one_alone(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(2.0)
        world.backend.break_starts("echo-00002", "no such weights", times=100)
        await world.deploy(function(timeout_s=10.0))
        await world.advance(5.0)
        assert world.shares()["echo-00001"] == 100.0
        assert len([each for each in world.replicas(READY) if each.revision == "echo-00001"]) == 1
        deployed = world.registry.get("echo")
        assert deployed is not None
        view = world.views.function(deployed, "http://x:1", "localhost")
        assert view.state is FunctionState.READY
        failure = next(each.failure for each in view.revisions if each.id == "echo-00002")
        assert failure is not None
        assert failure.reason == "no such weights"
        assert failure.failures > 1, "it is tried again, with back-off"

    in_world(tmp_path, tell)


def test_a_sleeping_function_stays_healthy_while_its_candidate_fails(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(16.0)
        assert state_of(world) is FunctionState.ASLEEP
        world.backend.break_starts("echo-00002", "no such weights", times=100)
        await world.deploy(function(timeout_s=10.0))
        await world.advance(3.0)
        assert state_of(world) is FunctionState.ASLEEP
        assert world.view().message == "candidate echo-00002: no such weights"
        world.backend.break_starts("echo-00001", "no memory", times=100)
        world.activate("echo-00001")
        await world.advance(2.0)
        assert state_of(world) is FunctionState.FAILED
        assert world.view().message == "no memory\ncandidate echo-00002: no such weights"

    in_world(tmp_path, tell)


def test_a_candidate_without_room_gets_one_place_of_several(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=3)))
        await world.advance(2.0)
        assert len(world.replicas(READY)) == 3
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        least = 3
        for _ in range(5):
            await world.advance(1.0)
            least = min(least, len(world.replicas(READY)))
        assert least >= 1
        assert world.shares()["echo-00002"] == 100.0
        await world.advance(3.0)
        assert [each.revision for each in world.replicas()] == ["echo-00002"]

    in_world(tmp_path, tell)


def test_a_candidate_may_go_ahead_where_only_one_place_exists(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("other", scaling=Scaling(min_scale=2)))
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        assert len(world.replicas(READY)) == 3
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(6.0)
        assert world.shares()["echo-00002"] == 100.0
        assert [each.revision for each in world.replicas() if each.function == "echo"] == ["echo-00002"]
        deployed = world.registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, deployed.candidate) == (2, None)

    in_world(tmp_path, tell)


def test_a_candidate_that_went_ahead_and_failed_gives_the_traffic_back(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("other", scaling=Scaling(min_scale=2)))
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        world.backend.break_starts("echo-00002", "no such weights", times=100)
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        seen = set()
        for _ in range(60):
            await world.advance(1.0)
            seen.add(world.shares().get("echo-00001", 0.0))
        assert 0.0 in seen, "the candidate had its chance"
        assert (world.shares()["echo-00001"], world.shares()["echo-00002"]) == (100.0, 0.0)
        assert [each.revision for each in world.replicas(READY) if each.function == "echo"] == ["echo-00001"]

    in_world(tmp_path, tell)


def test_a_failed_start_is_reported_to_those_who_wait_until_one_succeeds(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.break_starts("echo-00001", "no such weights", times=2)
        await world.deploy(function())
        world.clock.advance(1.0)
        world.backend.on_wakeup(world.clock.now())
        await world.settle()
        assert world.refusal("echo-00001") == "no such weights"
        assert state_of(world) is FunctionState.FAILED
        await world.advance(5.0)
        assert [each.state for each in world.replicas()] == [READY]
        assert world.refusal("echo-00001") is None
        assert state_of(world) is FunctionState.READY
        await world.advance(12.0)
        assert world.replicas() == []
        assert world.refusal("echo-00001") is None, "asleep after a success: the next request may wait"

    in_world(tmp_path, tell)


def test_after_the_retries_a_request_may_cause_another_attempt(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(initial_scale=0)))
        world.backend.break_starts("echo-00001", "no such weights", times=100)
        world.activate("echo-00001")
        await world.settle()
        world.answered("echo-00001")
        await world.advance(120.0)
        assert world.replicas(STARTING, READY) == []
        assert world.refusal("echo-00001") is None
        assert state_of(world) is FunctionState.FAILED, "people still see what happened"
        world.activate("echo-00001")
        await world.settle()
        assert len(world.replicas(STARTING)) == 1

    in_world(tmp_path, tell)


def test_a_start_that_was_killed_is_tried_again_before_anybody_is_refused(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        for attempt in (1, 2):
            (replica,) = world.replicas(STARTING)
            world.clock.advance(0.3)
            world.backend.crash(replica.id)
            await world.settle()
            if attempt == 1:
                assert world.refusal("echo-00001") is None
                assert state_of(world) is FunctionState.STARTING
                assert world.round.next_wakeup(2_000.0) == 2_000.0, "nothing to wait for"
                await world.second()
        assert "SIGKILL" in (world.refusal("echo-00001") or "")
        assert state_of(world) is FunctionState.FAILED

    in_world(tmp_path, tell)


def test_a_repair_comes_when_its_back_off_ends_and_not_at_the_next_second(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.break_starts("echo-00001", "no such weights", times=1)
        await world.deploy(function())
        world.clock.advance(1.0)
        world.backend.on_wakeup(world.clock.now())
        await world.second()
        failure = world.backend.failure("echo-00001")
        assert failure is not None
        assert world.round.next_wakeup(world.clock.now() + 1.0) == failure.not_before
        world.clock.advance(failure.not_before - world.clock.now())
        await world.second()
        assert len(world.replicas(STARTING)) == 1

    in_world(tmp_path, tell)


def test_a_crash_after_ready_is_repaired_and_none_is_refused(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        (replica,) = world.replicas()
        world.backend.crash(replica.id)
        await world.settle()
        assert world.refusal("echo-00001") is None
        await world.advance(3.0)
        assert [each.state for each in world.replicas()] == [READY]
        assert world.replicas()[0].id != replica.id

    in_world(tmp_path, tell)


def test_no_room_is_reported_only_when_it_lasts(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("big", scaling=Scaling(min_scale=3)))
        await world.advance(2.0)
        await world.deploy(function("late", scaling=Scaling(initial_scale=0)))
        for _ in range(3):
            world.activate("late-00001")
            await world.advance(1.0)
        assert world.refusal("late-00001") is None, "room may be just about to come"
        for _ in range(4):
            world.activate("late-00001")
            await world.advance(1.0)
        route = world.route("late-00001")
        assert route.failure == (
            "no accelerator has room for it: cpu has 0 of 3 places free; "
            "held by big with 3 (kept as long as its minimum scale is 3)"
        )
        assert route.failure_kind is FailureKind.NOT_SERVABLE

    in_world(tmp_path, tell)


def test_a_deleted_function_leaves_the_table_at_once_and_its_replicas_drain(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(2.0)
        (replica,) = world.replicas()
        world.backend.begin_work(replica.id)
        await world.delete("echo")
        assert world.shares() == {}
        await world.advance(2.0)
        assert [each.state for each in world.replicas()] == [DRAINING]
        world.backend.end_work(replica.id)
        await world.advance(2.0)
        assert world.replicas() == []
        assert world.loop.world.tracked("echo") == ()

    in_world(tmp_path, tell)


def test_functions_come_back_after_a_restart_and_stay_asleep(tmp_path: Path) -> None:
    async def before(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(20.0)
        await world.deploy(function("new"))

    async def after(world: ControlWorld) -> None:
        await world.advance(2.0)
        assert world.shares() == {"echo-00001": 100.0, "new-00001": 100.0}
        assert [each.function for each in world.replicas()] == ["new"], "it was deployed and never became ready"

    in_world(tmp_path, before)
    in_world(tmp_path, after)


def test_replicas_that_run_are_taken_up_after_a_restart(tmp_path: Path) -> None:
    kept: list[FakeBackend] = []

    async def before(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        kept.append(world.backend)

    async def after(world: ControlWorld) -> None:
        (replica,) = world.replicas()
        await world.advance(3.0)
        assert [each.id for each in world.replicas()] == [replica.id], "no second one"

    in_world(tmp_path, before)
    in_world(tmp_path, after, kept[0])


def test_what_a_deleted_function_still_drains_goes_on_draining_after_a_restart(tmp_path: Path) -> None:
    kept: list[FakeBackend] = []

    async def before(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(2.0)
        (replica,) = world.replicas()
        world.backend.begin_work(replica.id)
        await world.delete("echo")
        kept.append(world.backend)

    async def after(world: ControlWorld) -> None:
        assert world.shares() == {}
        (replica,) = world.replicas()
        assert world.registry.kept().keys() == {"echo-00001"}, "the backend adopts by this"
        await world.advance(3.0)
        assert [each.state for each in world.replicas()] == [DRAINING]
        world.backend.end_work(replica.id)
        await world.advance(3.0)
        assert world.replicas() == []
        assert world.registry.kept() == {}
        await world.deploy(function())
        assert world.shares() == {"echo-00002": 100.0}, "numbers go on"

    in_world(tmp_path, before)
    in_world(tmp_path, after, kept[0])


def test_one_record_per_cold_start(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(initial_scale=0)))
        world.activate("echo-00001")
        await world.settle()
        await world.advance(1.0)
        (replica,) = world.replicas()
        seen = ColdStartSeen(
            function="echo",
            revision="echo-00001",
            replica=replica.id,
            phases=ColdStartPhases(first_response_s=0.004),
        )
        sample = GatewaySample(
            worker="g0",
            incarnation="i1",
            sequence=50,
            uptime_s=50.0,
            table_epoch=1,
            table_number=1,
            connections=1,
            cold_starts=(seen,),
        )
        world.loop.sampling.gateway_seen(sample)
        world.loop.sampling.gateway_seen(sample)
        (line,) = (tmp_path / "cold-starts.jsonl").read_text().splitlines()
        record = json.loads(line)
        assert (record["replica"], record["from_zero"]) == (replica.id, True)
        assert record["phases"]["load_s"] == 1.0
        assert record["phases"]["first_response_s"] == 0.004
        assert record["phases"]["decide_s"] is not None

    in_world(tmp_path, tell)


def test_the_age_of_samples_is_reported_of_every_decision_that_has_some(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        world.ages.clear()
        await world.advance(5.0)
        assert len(world.ages) >= 4, "one a second"
        assert all(0.0 <= age_s <= 1.0 for age_s in world.ages)

    in_world(tmp_path, tell)


class Looked:
    """Counts how often a backend is asked for all its replicas, and for the room of a revision."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self.times = self.rooms = 0

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        self.times += 1
        return self._backend.replicas()

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        self.rooms += 1
        return self._backend.room(revision, share)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def looked_at(world: ControlWorld) -> Looked:
    found = world.loop.backend
    assert isinstance(found, Looked)
    return found


@pytest.mark.parametrize("are_starting", [False, True])
def test_a_round_looks_at_all_replicas_as_often_for_many_functions_as_for_few(
    tmp_path: Path, are_starting: bool
) -> None:
    times = []
    for functions in (2, 9):

        async def tell(world: ControlWorld, functions: int = functions) -> None:
            looked = looked_at(world)
            for index in range(functions):
                wanted = function(f"f{index}", scaling=Scaling(min_scale=2))
                await world.registry.deploy(wanted, manifest="text", source="test.yaml", now=world.clock.now())
            world.loop.world.sync()
            await world.settle()
            if not are_starting:
                await world.advance(5.0)
            looked.times = 0
            await world.second()
            times.append(looked.times)
            states = {each.state for each in world.replicas()}
            assert len(world.replicas()) == 2 * functions
            assert states == {ReplicaState.STARTING if are_starting else ReplicaState.READY}

        folder = tmp_path / str(functions)
        folder.mkdir()
        in_world(folder, tell, accelerator=replace(CPU, count=40), seen_as=Looked)
    assert times[0] == times[1], times


def test_the_replicas_of_a_revision_are_those_that_the_backend_has(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        census = ReplicaIndex()
        census.count(world.backend.replicas())
        world.backend.watch(census.note)
        await world.deploy(function(scaling=Scaling(min_scale=2)))
        for broken in (False, True, False, False):
            await world.advance(2.0)
            if broken:
                world.backend.crash(world.replicas()[0].id)
            assert tuple(census.of("echo-00001")) == world.backend.replicas()
            assert census.ready("echo-00001") == len(world.replicas(ReplicaState.READY))
        await world.delete("echo")
        assert tuple(census.of("echo-00001")) == world.backend.replicas()
        await world.advance(5.0)
        assert not census.of("echo-00001")
        assert not world.backend.replicas()

    in_world(tmp_path, tell, accelerator=replace(CPU, count=4))


def test_a_replica_that_becomes_ready_is_no_reason_to_look_at_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    saved: list[str] = []

    def parts(deployed: Deployed, *rest: Any) -> Any:
        synced.append(deployed.name)
        return traffic_split(deployed, *rest)

    async def tell(world: ControlWorld) -> None:
        save = world.registry.save

        async def noted(name: str) -> bool:
            saved.append(name)
            return await save(name)

        for name in ("first", "second", "third"):
            await world.deploy(function(name, scaling=Scaling(min_scale=2, initial_scale=2)))
        looked = looked_at(world)
        looked.times = 0
        monkeypatch.setattr(world.registry, "save", noted)
        monkeypatch.setattr("tidegate.control.rounds.world.traffic_split", parts)
        world.clock.advance(1.0)
        world.backend.on_wakeup(world.clock.now())
        assert len(world.replicas(READY)) == 6
        assert looked.times == 0
        await world.settle()
        assert sorted(synced) == ["first", "second", "third"], "once each, though two replicas of each are ready"
        assert sorted(saved) == sorted(synced)
        looked.times = 0
        assert world.view("second").ready == 2
        assert looked.times == 0, "nor to show a function"
        assert world.exposition().count("tidegate_group_weight{") == 3
        assert looked.times == 1, "once for all replicas, not for each function"

    in_world(tmp_path, tell, accelerator=replace(CPU, count=6), seen_as=Looked)


def test_a_plan_with_nothing_to_do_is_made_again_when_a_replica_or_the_wanted_number_changes(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(3.0)
        (tracked,) = world.loop.world.tracked("echo")
        plan = tracked.plan
        await world.advance(3.0)
        assert tracked.plan is plan, "nothing has changed"
        (before,) = world.replicas(READY)
        world.backend.crash(before.id)
        await world.advance(5.0)
        (after,) = world.replicas(READY)
        assert after.id != before.id

    in_world(tmp_path, tell)


def test_a_round_in_which_nothing_changes_asks_once_for_the_room_of_a_revision(tmp_path: Path) -> None:
    """For its decision; a plan that would have nothing to do is not made."""

    async def tell(world: ControlWorld) -> None:
        looked = looked_at(world)
        for name in ("first", "second", "third"):
            await world.deploy(function(name, scaling=Scaling(min_scale=1)))
        await world.advance(3.0)
        assert len(world.replicas(READY)) == 3
        looked.rooms = 0
        await world.second()
        assert looked.rooms == 3

    in_world(tmp_path, tell, others=(replace(CPU, name="other"),), seen_as=Looked)


def test_a_last_replica_that_broke_is_replaced_within_its_idle_time_and_everybody_is_reported(tmp_path: Path) -> None:
    """The first replica breaks 4 s after it became ready; the function sleeps at the time at which it would have."""

    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(5.0)
        (replica,) = world.replicas(READY)
        world.backend.crash(replica.id, "the model server was killed by SIGKILL (out of memory?) 5.0 s after its start")
        await world.second()
        assert state_of(world) is FunctionState.STARTING, "not asleep"
        (revision,) = world.view().revisions
        assert [each.code for each in revision.reasons] == ["restart", "replica_broke"]
        assert "SIGKILL (out of memory?)" in revision.reasons[-1].detail
        assert revision.crash is not None
        assert (revision.crash.count, revision.crash.replica, revision.crash.cause) == (1, replica.id, "killed")
        await world.advance(3.0)
        (other,) = world.replicas(READY)
        assert other.id != replica.id
        assert state_of(world) is FunctionState.READY
        (revision,) = world.view().revisions
        assert revision.crash is not None, "also after it was replaced"
        counts = world.loop.instruments.failures.counts
        assert counts == {("echo", "echo-00001", "cpu", "killed"): 1}
        await world.advance(6.0)
        assert world.replicas() == [], "the crash does not lengthen the idle time"
        assert state_of(world) is FunctionState.ASLEEP

    in_world(tmp_path, tell)


def test_a_model_that_breaks_again_and_again_without_a_request_ends_with_its_idle_time(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        for _ in range(20):
            await world.advance(1.0)
            for replica in world.replicas(READY):
                world.backend.crash(replica.id)
        assert world.replicas() == []
        assert state_of(world) is FunctionState.ASLEEP
        (revision,) = world.view().revisions
        assert revision.crash is not None
        assert 2 <= revision.crash.count < 12

    in_world(tmp_path, tell)


def test_a_last_replica_that_breaks_while_it_drains_to_zero_is_not_replaced(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        await world.advance(5.0)
        (replica,) = world.replicas(READY)
        world.backend.begin_work(replica.id)
        await world.backend.remove(replica.id)
        world.backend.crash(replica.id)
        await world.advance(3.0)
        assert world.replicas() == []

    in_world(tmp_path, tell)
