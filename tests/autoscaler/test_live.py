"""The shell: pulls with a limit, survives everything a source or a disk can do, keeps its log bounded."""

import asyncio
import resource
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.worlds.autoscaling import T0, activation, codes, demand, gateway_sample, replica_sample, revision
from tidegate.autoscaler.autoscaler import FleetContext, StandaloneContext
from tidegate.autoscaler.decisions.explain import digest
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.live import UNWRITTEN, DecisionLog, LiveAutoscaler, Puller
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import AcceleratorRoom
from tidegate.autoscaler.replay.player import again
from tidegate.autoscaler.replay.recording import read
from tidegate.clock import ManualClock
from tidegate.errors import Fault
from tidegate.function import Scaling
from tidegate.records.codec import decode, encode
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import GatewaySample
from tidegate.records.replica_state import ReplicaState

A = "resnet-00001-aaaaa"


@dataclass(frozen=True)
class Status:
    id: str
    state: ReplicaState
    revision: str = "resnet-00001"
    accelerator: str = "cpu"
    cores: tuple[int, ...] = ()
    threads: int | None = None


ROOMS = {"resnet-00001": (AcceleratorRoom(accelerator="cpu", room=3),)}


def gives(record: object) -> Callable[[], Awaitable[bytes]]:
    async def fetch() -> bytes:
        return encode(record)

    return fetch


def fails(error: BaseException) -> Callable[[], Awaitable[bytes]]:
    async def fetch() -> bytes:
        raise error

    return fetch


async def never() -> bytes:
    await asyncio.Event().wait()
    return b""


def autoscaler(
    path: Path | None = None, clock: ManualClock | None = None, context: FleetContext | None = None
) -> LiveAutoscaler:
    made = LiveAutoscaler(clock or ManualClock(T0), context or StandaloneContext(), path)
    made.core.apply(revision())
    made.core.fleet.put([], ROOMS)
    return made


def test_a_round_pulls_decides_and_explains() -> None:
    clock = ManualClock(T0)
    at = autoscaler(clock=clock)
    at.core.fleet.put([Status(A, ReplicaState.READY)], ROOMS)
    at.sources(
        {"g0": gives(gateway_sample(demand(arrivals=3)))}, {A: gives(replica_sample(A, in_flight_request_s=0.6))}
    )
    asyncio.run(at.sample())
    (decision,) = at.core.decide(T0 + 1)
    assert (decision.desired, decision.ready) == (1, 1)
    seen = at.core.observation("resnet-00001")
    assert seen is not None
    assert (seen.rps, seen.concurrency) == (3.0, 0.6)
    assert at.faults() == {}
    assert "resnet-00001 kpa: 1 replica (cpu 1), 1 ready" in at.core.explain("resnet", 1)[0]
    assert at.core.explain("missing", 5) == []
    assert at.core.decisions("resnet", 0) == []


def test_sources_that_fail_are_faults_and_the_others_still_count() -> None:
    at = autoscaler()
    at.sources(
        {
            "g0": gives(gateway_sample(demand(waiting=4))),
            "g1": fails(ConnectionRefusedError("gone")),
            "g2": fails(KeyError("a client's own bug")),
            "g3": gives({"worker": 7}),
        },
        {},
    )
    asyncio.run(at.sample())
    faults = at.faults()
    assert faults["unreadable"] == 1
    assert faults["source g1"] == "ConnectionRefusedError: gone"
    assert "source g2" in faults and "unreachable" not in faults
    (decision,) = at.core.decide(T0)
    assert decision.observed["waiting"] == 4.0


def test_a_silent_source_costs_its_time_limit_and_no_more() -> None:
    collector = Collector()
    collector.expect(["g0"], [A])
    collector.apply("resnet-00001", T0)
    seen: list[GatewaySample] = []
    puller = Puller(collector, ManualClock(T0), timeout_s=0.01, gateway_seen=seen.append)
    asyncio.run(puller.pull({"g0": gives(gateway_sample())}, {A: never}))
    assert len(seen) == 1
    assert puller.last_errors[A] == "no answer within 0.01 s"
    assert repr(puller) == f"<Puller 0.01 s, failing: ['{A}']>"


def test_cancelling_a_pull_cancels_it() -> None:
    async def run() -> None:
        at = autoscaler()
        at.sources({"g0": never}, {})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await at.sample()

    asyncio.run(run())


def test_samples_reach_who_else_wants_them() -> None:
    seen: list[object] = []
    at = LiveAutoscaler(ManualClock(T0), StandaloneContext(), gateway_seen=seen.append, replica_seen=seen.append)
    whole = replace(gateway_sample(), certificate_fault="no such file", is_last=True)
    at.sources({"g0": gives(whole)}, {A: gives(replica_sample(A))})
    asyncio.run(at.sample())
    assert seen == [whole, replica_sample(A)]


class TickingClock(ManualClock):
    """Every look at it takes two milliseconds."""

    def now(self) -> float:
        self.advance(0.002)
        return super().now()


def test_many_revisions_are_decided_in_slices() -> None:
    at = LiveAutoscaler(TickingClock(T0), StandaloneContext())
    revisions = [revision(name=f"f{number}") for number in range(40)]
    for each in revisions:
        at.core.apply(each)
    assert at.core.decide(T0) == [], "without a fleet nothing is decided"
    at.core.fleet.put([], {each.id: ROOMS["resnet-00001"] for each in revisions})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def decided() -> list[Decision]:
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(others(), name="others")
            found = await at.decided(T0)
            beside.cancel()
        return found

    decisions = asyncio.run(decided())
    assert sorted(decision.revision for decision in decisions) == sorted(each.id for each in revisions)
    assert turns >= 10, "the loop ran in between"
    at.core.forget("f3-00001")
    assert len(at.core.decide(T0)) == 39
    assert at.core.observation("f3-00001") is None


def test_an_activation_amid_a_tick_leaves_a_recording_in_order() -> None:
    clock = TickingClock(T0)
    at = LiveAutoscaler(clock, StandaloneContext())
    for name in ("bert", "echo", "resnet"):
        at.core.apply(revision(name=name), fresh=False)
    at.core.fleet.put([], {each.id: ROOMS["resnet-00001"] for each in at.core.decider.revisions})

    async def push() -> None:
        at.core.activated(activation(), clock.now())

    async def decided() -> list[Decision]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(push(), name="push")
            return await at.decided(T0)

    assert "resnet-00001" not in [each.revision for each in asyncio.run(decided())], "its answer stands"
    (resnet,) = [each for each in at.core.decide(T0) if each.revision == "resnet-00001"]
    assert resnet.at > T0, "not before what the activation was answered"
    faults: list[Fault] = []
    text = b"".join(asyncio.run(at.recorder.lines("resnet-00001"))).decode()
    played = again(list(read(text.splitlines(), faults)))
    assert (faults, played.compared, played.difference) == ([], 2, None)


def test_the_log_holds_json_lines_and_is_read_back_by_the_next_process(tmp_path: Path) -> None:
    at = autoscaler(tmp_path / "decisions")
    at.core.decide(T0)
    at.core.decide(T0 + 1)
    at.core.activated(activation(), T0 + 2)
    lines = (tmp_path / "decisions" / "resnet.jsonl").read_bytes().splitlines()
    assert [decode(line, Decision).at for line in lines] == [T0, T0 + 2]
    with (tmp_path / "decisions" / "resnet.jsonl").open("ab") as log:
        log.write(b'{"cut off')
    later = autoscaler(tmp_path / "decisions")
    assert [codes(decision)[-1] for decision in later.core.decisions("resnet", 9)] == [
        "initial_scale",
        "already_starting",
    ]


def test_a_line_of_the_log_has_the_weights_in_force_and_the_digest_of_what_was_decided_upon(tmp_path: Path) -> None:
    class Weighted(StandaloneContext):
        def weights(self, revision: str) -> Mapping[str, float]:
            return {"resnet-00001": {"cpu": 1.0}}[revision]

    at = autoscaler(tmp_path, context=Weighted())
    at.core.decide(T0)
    line = decode((tmp_path / "resnet.jsonl").read_bytes(), Decision)
    seen = at.core.observation("resnet-00001")
    assert seen is not None
    assert (line.weights, line.digest) == ({"cpu": 1.0}, digest(seen))
    assert line.limits == ("initial_scale",)
    assert "    weights in force: cpu 100 %" in at.core.explain("resnet")


def test_every_decision_is_recorded_and_the_recording_replays() -> None:
    at = autoscaler()
    for second in range(5):
        at.core.decide(T0 + second)
    at.core.activated(activation(), T0 + 5)
    faults: list[Fault] = []
    text = b"".join(asyncio.run(at.recorder.lines("resnet-00001"))).decode()
    played = again(list(read(text.splitlines(), faults)))
    assert (faults, played.compared, played.difference) == ([], 6, None)
    at.core.forget("resnet-00001")
    assert at.recorder.recorded("resnet") == ["resnet-00001"], "to be written by the next flush"


def test_what_is_carried_out_instead_of_a_decision_is_shown_and_logged_and_not_recorded() -> None:
    at = autoscaler()
    (own,) = at.core.decide(T0)
    kept = replace(own, desired=2, reasons=(*own.reasons, reason("rollout_awake")))
    at.core.settled(own, kept)
    assert [each.desired for each in at.core.decisions("resnet")] == [1, 2]
    assert any(line.startswith("now, resnet-00001: 2 replicas") for line in at.core.explain("resnet"))
    (again_own,) = at.core.decide(T0 + 1)
    at.core.settled(again_own, replace(kept, at=T0 + 1))
    assert len(at.core.decisions("resnet")) == 2, "nothing has changed"
    (late,) = at.core.decide(T0 + 2)
    at.core.settled(late, late)
    assert [each.desired for each in at.core.decisions("resnet")] == [1, 2, 1], "what was decided is in force again"
    (last,) = at.core.decide(T0 + 3)
    at.core.activated(activation(), T0 + 3.1)
    at.core.settled(last, replace(kept, at=T0 + 3))
    assert any(line.startswith("now, resnet-00001: hold") for line in at.core.explain("resnet")), "older: void"
    faults: list[Fault] = []
    text = b"".join(asyncio.run(at.recorder.lines("resnet-00001"))).decode()
    played = again(list(read(text.splitlines(), faults)))
    assert (faults, played.compared, played.difference) == ([], 5, None)


def test_a_full_disk_stops_the_log_and_not_the_decisions(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    at = autoscaler(tmp_path / "file")
    (decision,) = at.core.decide(T0)
    assert decision.desired == 1
    faults = at.faults()
    assert str(faults["log"]).startswith("decision log: ")
    assert "log_lines_lost" not in faults, "it is kept"


def test_lines_that_could_not_be_written_follow_in_their_order_without_a_new_decision(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("not a directory")
    at, log = autoscaler(), DecisionLog(tmp_path / "logs")
    (decision,) = at.core.decide(T0)
    for at_s in range(3):
        log.write(replace(decision, at=T0 + at_s))
    log.write_again()
    assert isinstance(log.fault, str)
    (tmp_path / "logs").unlink()
    log.write_again()
    assert log.lost == 0
    assert [each.at for each in log.read("resnet", 5)] == [T0, T0 + 1, T0 + 2]


def test_of_lines_that_cannot_be_written_the_oldest_are_lost(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("not a directory")
    at, log = autoscaler(), DecisionLog(tmp_path / "logs")
    (decision,) = at.core.decide(T0)
    for at_s in range(UNWRITTEN + 2):
        log.write(replace(decision, at=T0 + at_s))
    assert log.lost == 2
    (tmp_path / "logs").unlink()
    log.write_again()
    assert log.read("resnet", UNWRITTEN + 2)[0].at == T0 + 2


def test_a_line_that_is_written_in_part_is_taken_back(tmp_path: Path) -> None:
    at, log = autoscaler(), DecisionLog(tmp_path)
    (decision,) = at.core.decide(T0)
    log.write(decision)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "resnet.jsonl").stat().st_size + 10, before[1]))
    try:
        log.write(replace(decision, at=T0 + 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    first = log.fault
    log.write_again()
    assert first and not log.fault
    assert [each.at for each in log.read("resnet", 5)] == [T0, T0 + 1]


def test_the_log_is_bounded(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path, max_bytes=2000)
    at = autoscaler()
    (decision,) = at.core.decide(T0)
    for _ in range(100):
        log.write(decision)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"resnet.jsonl", "resnet.jsonl.1"}
    assert max(sizes.values()) < 3000
    assert log.fault is None
    assert len(log.read("resnet", 2)) == 2
    assert log.read("missing", 2) == []
    assert DecisionLog(None).read("resnet", 2) == []


def test_a_demand_that_cannot_be_read_costs_the_others_nothing() -> None:
    seen: list[GatewaySample] = []
    at = LiveAutoscaler(ManualClock(T0), StandaloneContext(), gateway_seen=seen.append)
    at.core.apply(revision())
    at.core.fleet.put([], ROOMS)
    whole = decode(encode(gateway_sample(demand(waiting=4))), dict)
    whole["demands"] = [{"function": 7}, *whole["demands"]]
    at.sources({"g0": gives(whole)}, {})
    asyncio.run(at.sample())
    assert at.faults()["unreadable"] == 1
    assert [each.waiting for each in seen[0].demands] == [4]
    assert at.core.decide(T0)[0].observed["waiting"] == 4.0


def tell(at: LiveAutoscaler, replicas: Sequence[Status], queued: int = 0) -> None:
    """One round of samples, of a world that is idle but for what is queued at each replica."""
    at.sources(
        {"g0": gives(gateway_sample(demand()))},
        {each.id: gives(replica_sample(each.id, revision=each.revision, queued=queued)) for each in replicas},
    )
    asyncio.run(at.sample())


def test_one_limit_over_all_functions_is_shared_and_place_is_waited_for() -> None:
    at = LiveAutoscaler(ManualClock(T0), StandaloneContext(), max_replicas=3)
    names = ("resnet-00001", "bert-00001")
    for name in ("resnet", "bert"):
        at.core.apply(revision(name=name, scaling=Scaling(min_scale=3)), fresh=False)
    rooms = {name: (AcceleratorRoom(accelerator="cpu", room=9),) for name in names}
    there = [Status(f"resnet-00001-{index}", ReplicaState.READY) for index in range(3)]
    at.core.fleet.put(there, rooms)
    at.core.decide(T0)
    blind = {each.revision: each for each in at.core.decide(T0)}
    assert (blind["resnet-00001"].desired, blind["bert-00001"].desired) == (None, 0), "nothing is taken away blindly"
    tell(at, there)
    at.core.decide(T0)
    first = {each.revision: each for each in at.core.decide(T0 + 1)}
    assert (first["resnet-00001"].desired, codes(first["resnet-00001"])[-1]) == (2, "capped_by_total"), (
        "the odd one stays where it is"
    )
    assert first["bert-00001"].desired == 0, "its place is not free yet"
    at.core.fleet.put(there[:2], rooms)
    tell(at, there[:2])
    second = {each.revision: each for each in at.core.decide(T0 + 2)}
    assert [second[name].desired for name in names] == [2, 1]


def test_in_one_limit_over_all_a_retired_revision_counts_with_what_it_still_has() -> None:
    class Retired(StandaloneContext):
        def is_carried_out(self, revision: str) -> bool:
            return revision != "resnet-00001"

    at = LiveAutoscaler(ManualClock(T0), Retired(), max_replicas=3)
    for name in ("bert", "resnet"):
        at.core.apply(revision(name=name, scaling=Scaling(min_scale=3)), fresh=False)
    rooms = {name: (AcceleratorRoom(accelerator="cpu", room=9),) for name in ("bert-00001", "resnet-00001")}
    there = [Status("resnet-00001-0", ReplicaState.DRAINING)]
    at.core.fleet.put(there, rooms)
    tell(at, there)
    at.core.decide(T0)
    decided = {each.revision: each for each in at.core.decide(T0 + 1)}
    assert decided["bert-00001"].desired == 2, "its minimum takes nothing from those who stay"


def test_in_one_limit_over_all_a_dry_run_takes_what_it_has_and_no_more() -> None:
    at = LiveAutoscaler(ManualClock(T0), StandaloneContext(), max_replicas=3)
    at.core.apply(revision(name="bert", scaling=Scaling(dry_run=True)), fresh=False)
    at.core.apply(revision(name="resnet", scaling=Scaling(min_scale=3)), fresh=False)
    rooms = {name: (AcceleratorRoom(accelerator="cpu", room=9),) for name in ("bert-00001", "resnet-00001")}
    there = [Status("bert-00001-0", ReplicaState.READY, revision="bert-00001")]
    at.core.fleet.put(there, rooms)
    tell(at, there, queued=500)
    at.core.decide(T0)
    at.core.decide(T0 + 1)
    decided = {each.revision: each for each in at.core.decide(T0 + 2)}
    bert, resnet = decided["bert-00001"], decided["resnet-00001"]
    assert (bert.is_dry_run, bert.desired, resnet.desired) == (True, 10, 2)
