"""The promises of every backend as scenarios: over the fake one, over real processes, and over Pods of a real control
plane."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import NoReturn

import pytest

from tests.support.live.backends import PHASES, TWO_CORES, Bench, FakeBench, local_bench, revision, status_of
from tests.support.live.control_plane import ControlPlane, control_plane
from tests.support.live.pods import pod_bench
from tidegate.deploy.backend import BackendError, ResizeRefusedError, SleepRefusedError, UnknownReplicaError
from tidegate.deploy.placement.ledger import NoRoomError, Room
from tidegate.function import Batching
from tidegate.records.replica_state import ReplicaState

Scenario = Callable[[Bench], Awaitable[None]]
A, B, C = "resnet-00001-aaaaa", "resnet-00001-bbbbb", "resnet-00001-ccccc"


ON_A_CLUSTER = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as found:
        yield found


@pytest.fixture(
    params=["fake", pytest.param("local", marks=pytest.mark.live), pytest.param("kubernetes", marks=ON_A_CLUSTER)]
)
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    async def on_fake(scenario: Scenario) -> None:
        await scenario(FakeBench([TWO_CORES]))

    async def on_local(scenario: Scenario) -> None:
        async with local_bench() as bench:
            await scenario(bench)

    async def on_kubernetes(scenario: Scenario) -> None:
        async with pod_bench(request.getfixturevalue("plane")) as bench:
            await scenario(bench)

    run = {"fake": on_fake, "local": on_local, "kubernetes": on_kubernetes}[request.param]
    return lambda scenario: asyncio.run(run(scenario))


def is_state(bench: Bench, replica_id: str, state: ReplicaState) -> Callable[[], bool]:
    def holds() -> bool:
        found = status_of(bench.backend, replica_id)
        return found is not None and found.state is state

    return holds


async def ready(bench: Bench, *ids: str) -> None:
    for each in ids:
        await bench.backend.create(each, revision(), "cpu-1core", PHASES)
    for each in ids:
        await bench.until(is_state(bench, each, ReplicaState.READY))


async def pass_until(bench: Bench, moment: float) -> None:
    await bench.until(lambda: bench.now() >= moment)


def states(bench: Bench, replica_id: str) -> list[ReplicaState]:
    """Returns the reported states, without repetitions."""
    reported: list[ReplicaState] = []
    for status in bench.seen:
        if status.id == replica_id and reported[-1:] != [status.state]:
            reported.append(status.state)
    return reported


def test_a_replica_starts_serves_drains_and_is_gone(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        backend = bench.backend
        first = await backend.create(A, revision(), "cpu-1core", PHASES)
        assert first.state is ReplicaState.STARTING
        await bench.until(is_state(bench, A, ReplicaState.READY))
        status = status_of(backend, A)
        assert status is not None
        assert status.address
        assert (status.function, status.revision, status.accelerator) == ("resnet", "resnet-00001", "cpu-1core")
        assert status.limit == 4
        assert status.ready_at is not None
        assert status.phases.decide_s == 0.002, "the caller's phases are kept"
        assert status.phases.schedule_s is not None
        assert status.phases.load_s is not None
        await backend.remove(A)
        await bench.until(lambda: not backend.replicas())
        assert states(bench, A) == [
            ReplicaState.STARTING,
            ReplicaState.READY,
            ReplicaState.DRAINING,
            ReplicaState.DRAINED,
            ReplicaState.STOPPED,
        ]

    play(scenario)


def test_a_drain_waits_for_running_work_and_can_be_taken_back(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        backend = bench.backend
        await ready(bench, A)
        await bench.hold(A)
        await backend.remove(A)
        assert status_of(backend, A).state is ReplicaState.DRAINING  # type: ignore[union-attr]  # it is there
        assert await backend.revive(A)
        assert status_of(backend, A).state is ReplicaState.READY  # type: ignore[union-attr]  # it is there
        await bench.release(A)
        await backend.remove(A)
        await bench.until(lambda: not backend.replicas())
        assert not await backend.revive(A), "what is recorded as stopped stays so"

    play(scenario)


def test_a_ready_replica_and_an_unknown_one_cannot_be_revived(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A)
        assert not await bench.backend.revive(A)
        assert not await bench.backend.revive(B)
        with pytest.raises(UnknownReplicaError):
            await bench.backend.remove(B)

    play(scenario)


def test_removing_twice_is_removing_once(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A)
        await bench.hold(A)
        await bench.backend.remove(A)
        await bench.backend.remove(A)
        await bench.release(A)
        await bench.until(lambda: not bench.backend.replicas())
        assert states(bench, A).count(ReplicaState.STOPPED) == 1

    play(scenario)


def test_a_starting_replica_is_stopped_at_once(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.backend.create(A, revision(), "cpu-1core", PHASES)
        await bench.backend.remove(A)
        assert bench.backend.replicas() == ()
        assert states(bench, A) == [ReplicaState.STARTING, ReplicaState.STOPPED]

    play(scenario)


class Unwalked(dict[str, object]):
    """May be looked up, not gone through."""

    def values(self) -> NoReturn:
        raise AssertionError("all replicas were looked at")

    items = __iter__ = values


def test_whether_a_revision_failed_is_known_without_a_look_at_all_replicas(play: Callable[[Scenario], None]) -> None:
    """A round asks this of every revision."""

    async def scenario(bench: Bench) -> None:
        await ready(bench, A)
        holder, name = bench.replica_table()
        kept = getattr(holder, name)
        setattr(holder, name, Unwalked(kept))
        try:
            assert bench.backend.failure("resnet-00001") is None
        finally:
            setattr(holder, name, kept)

    play(scenario)


def test_the_ledger_is_never_over_committed(play: Callable[[Scenario], None]) -> None:
    """Two units: the third replica is refused, and fits when one has gone."""

    async def scenario(bench: Bench) -> None:
        backend = bench.backend
        assert backend.room(revision()) == {"cpu-1core": Room(free=2, total=2)}
        await backend.create(A, revision(), "cpu-1core", PHASES)
        second = await backend.create(B, revision(), "cpu-1core", PHASES)
        assert backend.room(revision()) == {"cpu-1core": Room(free=0, total=2)}
        assert (second.unit, second.threads) == (1, 1)
        with pytest.raises(NoRoomError, match="2 of 2 units in use"):
            await backend.create(C, revision(), "cpu-1core", PHASES)
        await backend.remove(B)
        await bench.until(lambda: backend.room(revision())["cpu-1core"].free == 1)
        assert (await backend.create(C, revision(), "cpu-1core", PHASES)).unit == 1

    play(scenario)


def test_an_unknown_accelerator_and_a_known_id_are_refused(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(NoRoomError, match="there are: cpu-1core"):
            await bench.backend.create(A, revision(), "h100", PHASES)
        await bench.backend.create(A, revision(), "cpu-1core", PHASES)
        with pytest.raises(BackendError, match="exists"):
            await bench.backend.create(A, revision(), "cpu-1core", PHASES)

    play(scenario)


def test_room_counts_memory(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        assert bench.backend.room(revision(memory_bytes=2 << 30)) == {}
        with pytest.raises(BackendError):
            await bench.backend.apply(revision(memory_bytes=2 << 30))
        await bench.backend.apply(revision(memory_bytes=1 << 30))

    play(scenario)


def test_a_crash_is_seen_reported_and_backed_off(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        backend = bench.backend
        await ready(bench, A)
        assert backend.failure("resnet-00001") is None
        bench.crash(A)
        await bench.until(is_state(bench, A, ReplicaState.FAILED))
        status, failure = status_of(backend, A), backend.failure("resnet-00001")
        assert status is not None
        assert failure is not None
        assert "SIGKILL" in (status.reason or "")
        assert (failure.failures, failure.was_ready) == (1, True)
        assert 0.1 < failure.not_before - bench.now() <= 0.25
        await bench.until(lambda: backend.room(revision())["cpu-1core"].free == 2)
        await backend.remove(A)
        assert backend.replicas() == ()
        assert states(bench, A)[-2:] == [ReplicaState.FAILED, ReplicaState.STOPPED]

    play(scenario)


def test_a_server_that_dies_at_its_start_says_why_and_waits_longer_each_time(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        backend, broken = bench.backend, bench.broken()
        waits = []
        for number in range(3):
            name = f"broken-00001-aaaa{number}"
            await backend.create(name, broken, "cpu-1core", PHASES)
            await bench.until(is_state(bench, name, ReplicaState.FAILED))
            status, failure = status_of(backend, name), backend.failure(broken.id)
            assert status is not None
            assert failure is not None
            assert "no weights" in (status.reason or "")
            assert failure.failures == number + 1
            assert not failure.was_ready
            waits.append(failure.not_before - failure.at)
            await backend.remove(name)
            await pass_until(bench, failure.not_before)
        assert waits[0] < waits[1] < waits[2]

    play(scenario)


def test_a_draining_replica_that_breaks_is_simply_gone(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A)
        await bench.hold(A)
        await bench.backend.remove(A)
        bench.crash(A)
        await bench.until(lambda: not bench.backend.replicas())
        assert bench.backend.failure("resnet-00001") is None, "its replica is not wanted any more"

    play(scenario)


def test_resize_is_bounded_by_the_unit(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A)
        assert (await bench.backend.resize(A, threads=1)).threads == 1
        with pytest.raises(ResizeRefusedError):
            await bench.backend.resize(A, threads=2)
        with pytest.raises(ResizeRefusedError):
            await bench.backend.resize(A, share=50)
        with pytest.raises(UnknownReplicaError):
            await bench.backend.resize(B, threads=1)

    play(scenario)


def test_a_command_takes_no_orders_about_batches(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A)
        with pytest.raises(ResizeRefusedError, match="takes no orders about batches"):
            await bench.backend.configure(A, Batching(max_size=2))
        with pytest.raises(UnknownReplicaError):
            await bench.backend.configure(B, Batching())

    play(scenario)


def test_after_the_end_nothing_is_reported(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        heard: list[str] = []
        end = bench.backend.watch(lambda status: heard.append(status.id))
        await bench.backend.create(A, revision(), "cpu-1core", PHASES)
        end()
        await bench.backend.create(B, revision(), "cpu-1core", PHASES)
        assert set(heard) == {A}

    play(scenario)


def test_close_stops_everything(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A, B)
        await bench.backend.close(stop_replicas=True)
        assert bench.backend.replicas() == ()
        assert states(bench, A)[-1] is ReplicaState.STOPPED
        assert states(bench, B)[-1] is ReplicaState.STOPPED
        with pytest.raises(BackendError):
            await bench.backend.create("resnet-00001-ddddd", revision(), "cpu-1core", PHASES)

    play(scenario)


def test_nothing_is_started_or_taken_back_while_it_closes(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        await ready(bench, A, B)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bench.backend.close(stop_replicas=True))
            await asyncio.sleep(0)
            with pytest.raises(BackendError):
                await bench.backend.create("resnet-00001-ddddd", revision(), "cpu-1core", PHASES)
            assert not await bench.backend.revive(A)
        assert bench.backend.replicas() == ()

    play(scenario)


def test_a_replica_sleeps_off_its_unit_and_wakes_on_a_free_one(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        backend = bench.backend
        await ready(bench, A, B)
        with pytest.raises(UnknownReplicaError):
            await backend.sleep(C)
        try:
            await backend.sleep(A)
        except SleepRefusedError:
            assert all(is_state(bench, each, ReplicaState.READY)() for each in (A, B)), "it goes on as it was"
            assert backend.sleep_refusal(backend.devices()[0]), "it is known beforehand"
            return
        assert backend.sleep_refusal(backend.devices()[0]) is None
        await bench.until(is_state(bench, A, ReplicaState.ASLEEP))
        assert backend.room(revision())["cpu-1core"].free == 1
        with pytest.raises(SleepRefusedError):
            await backend.sleep(A)
        await ready(bench, C)
        assert not await backend.revive(A), "no unit is free"
        await backend.remove(C)
        await bench.until(lambda: backend.room(revision())["cpu-1core"].free == 1)
        assert await backend.revive(A)
        await bench.until(is_state(bench, A, ReplicaState.READY))
        status = status_of(backend, A)
        assert status is not None and status.asleep_at is None and status.wake_s is not None
        assert states(bench, A)[-4:] == [
            ReplicaState.DRAINING,
            ReplicaState.DRAINED,
            ReplicaState.ASLEEP,
            ReplicaState.READY,
        ]
        await backend.sleep(A)
        await bench.until(is_state(bench, A, ReplicaState.ASLEEP))
        await backend.remove(A)
        await bench.until(lambda: status_of(backend, A) is None)
        await bench.until(lambda: backend.room(revision())["cpu-1core"].free == 1)

    play(scenario)


def test_a_sleep_is_taken_back_while_work_runs_and_a_removal_overrides_it(play: Callable[[Scenario], None]) -> None:
    async def scenario(bench: Bench) -> None:
        backend = bench.backend
        await ready(bench, A)
        await bench.hold(A)
        try:
            await backend.sleep(A)
        except SleepRefusedError:
            await bench.release(A)
            return
        assert is_state(bench, A, ReplicaState.DRAINING)() and await backend.revive(A)
        await bench.until(is_state(bench, A, ReplicaState.READY))
        await backend.sleep(A)
        await backend.remove(A)
        await bench.release(A)
        await bench.until(lambda: status_of(backend, A) is None)
        assert ReplicaState.ASLEEP not in states(bench, A)

    play(scenario)
