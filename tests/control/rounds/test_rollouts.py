"""Splits by hand, rollback and rollouts, in the control round over a fake backend."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.worlds.autoscaling import demand
from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.api.commands.traffic import TrafficCommands
from tidegate.control.api.errors import RefusedError
from tidegate.control.views.functions import RolloutView, SplitView
from tidegate.control.views.requests import RollbackRequest, RolloutAction, RolloutRequest, SplitRequest
from tidegate.errors import InvalidInputError
from tidegate.function import Function, Scaling
from tidegate.records.gateway_sample import ShadowSeen
from tidegate.records.replica_state import ReplicaState
from tidegate.records.rollout import Phase, RolloutPlan
from tidegate.store.embedded import EmbeddedStore
from tidegate.store.records import StoreFaultError

CANARY = RolloutPlan(canary_steps=(1.0, 50.0), canary_window_s=10.0)
AWAKE = Scaling(min_scale=1)


def version(n: int, **changes: Any) -> Function:
    """Another revision of echo."""
    return function(timeout_s=100.0 + n, **({"scaling": AWAKE} | changes))


class Load:
    """Requests as one gateway worker counts them, by the percents of its table."""

    def __init__(self, world: ControlWorld, rps: float = 200.0, bad: Mapping[str, float] | None = None) -> None:
        self.world, self.rps, self.bad = world, rps, dict(bad or {})
        self.sent: dict[str, float] = {}
        self.failed: dict[str, float] = {}

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for revision, percent in self.world.shares().items():
                requests = self.rps * percent / 100
                self.sent[revision] = self.sent.get(revision, 0.0) + requests
                self.failed[revision] = self.failed.get(revision, 0.0) + requests * self.bad.get(revision, 0.0)
                total, failed = int(self.sent[revision]), int(self.failed[revision])
                report = demand(
                    revision, arrivals=total, answered=total - failed, within_sla=total - failed, failed=failed
                )
                self.world.gateways.demands[revision] = report
            await self.world.advance(1.0)


async def two(world: ControlWorld, **second: Any) -> TrafficCommands:
    """echo-00001 serves, echo-00002 has been deployed."""
    await world.deploy(version(1))
    await world.advance(2.0)
    await world.deploy(version(2, **second))
    return world.commands()


async def split(world: ControlWorld, steering: TrafficCommands, request: SplitRequest) -> SplitView:
    view = await steering.set_split("echo", request)
    await world.settle()
    return view


async def act(world: ControlWorld, steering: TrafficCommands, action: RolloutAction, **plan: str) -> RolloutView:
    named = {key.replace("_", "-"): text for key, text in plan.items()}
    view = await steering.change_rollout("echo", RolloutRequest(action=action, plan=named))
    await world.settle()
    return view


# --- splits by hand --------------------------------------------------------------------------------------------------


def test_a_split_by_hand_stays_and_both_revisions_serve(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world)
        await world.advance(3.0)
        assert world.shares()["echo-00002"] == 100.0
        view = await split(world, steering, SplitRequest(split={"1": 90.0, "echo-00002": 10.0}, tags={"stable": "1"}))
        assert view.is_pinned
        assert world.shares() == {"echo-00001": 90.0, "echo-00002": 10.0}
        assert world.route("echo-00001").tags == ("stable",)
        await world.advance(30.0)
        assert {each.revision for each in world.replicas(ReplicaState.READY)} == {"echo-00001", "echo-00002"}
        await world.deploy(version(3))
        await world.advance(5.0)
        assert world.shares() == {"echo-00001": 90.0, "echo-00002": 10.0, "echo-00003": 0.0}, "a split by hand holds"
        assert world.view().is_pinned
        await split(world, steering, SplitRequest(follow=True))
        await world.advance(5.0)
        assert world.shares()["echo-00003"] == 100.0, "the newest takes over again"
        assert world.route("echo-00001").tags == ("stable",), "kept for its tag"

    in_world(tmp_path, tell)

    async def again(world: ControlWorld) -> None:
        assert world.shares() == {"echo-00003": 100.0, "echo-00001": 0.0}
        assert world.route("echo-00001").tags == ("stable",)

    in_world(tmp_path, again)


def test_a_split_survives_a_restart(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world)
        await split(world, steering, SplitRequest(split={"1": 70.0, "2": 30.0}))

    async def again(world: ControlWorld) -> None:
        assert world.shares() == {"echo-00001": 70.0, "echo-00002": 30.0}

    in_world(tmp_path, tell)
    in_world(tmp_path, again)


def test_a_tagged_revision_sleeps_and_is_woken(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, scaling=Scaling(scale_to_zero_after_s=5.0))
        await world.advance(3.0)
        await split(world, steering, SplitRequest(split={"1": 100.0}, tags={"next": "2"}))
        await world.advance(15.0)
        assert [each.revision for each in world.replicas()] == ["echo-00001"]
        assert world.route("echo-00002").tags == ("next",)
        world.activate("echo-00002")
        await world.settle()
        assert [each.revision for each in world.replicas(ReplicaState.STARTING)] == ["echo-00002"]

    in_world(tmp_path, tell)


def test_all_faults_of_a_split_are_reported_at_once(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world)
        wrong = SplitRequest(split={"1": 90.0, "9": 20.0}, tags={"No": "8"}, untag=("gone",))
        with pytest.raises(InvalidInputError) as caught:
            await split(world, steering, wrong)
        assert [(fault.where, fault.value) for fault in caught.value.faults] == [
            ("split", "9"),
            ("split", "a sum of 110"),
            ("untag", "gone"),
            ("tag", "No"),
            ("tag No", "8"),
        ]
        with pytest.raises(InvalidInputError):
            await split(world, steering, SplitRequest())

    in_world(tmp_path, tell)


# --- rollback --------------------------------------------------------------------------------------------------------


def test_a_tag_hides_no_revision_and_fits_a_host(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world)
        for tag in ("2", "00002", "echo-00002", "t" * 59):
            with pytest.raises(InvalidInputError, match="tag: got"):
                await split(world, steering, SplitRequest(tags={tag: "1"}))
        await split(world, steering, SplitRequest(tags={"t" * 58: "1", "2x": "1"}))

    in_world(tmp_path, tell)


def test_a_rollback_waits_for_the_earlier_revision_where_the_present_one_serves(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world)
        await world.advance(8.0)
        assert [each.revision for each in world.replicas()] == ["echo-00002"]
        world.backend.start_up_s = 3.0
        view = await steering.rollback("echo", RollbackRequest())
        assert (view.candidate, view.is_returning) == ("echo-00001", True)
        await world.advance(2.0)
        assert world.shares() == {"echo-00002": 100.0, "echo-00001": 0.0}
        await world.advance(5.0)
        assert world.shares()["echo-00001"] == 100.0
        await world.advance(5.0)
        assert world.shares() == {"echo-00001": 100.0}, "the newer one is no candidate any more"
        await world.deploy(version(3))
        await world.advance(8.0)
        assert world.shares()["echo-00003"] == 100.0, "the next deploy takes over as usual"
        with pytest.raises(RefusedError, match="no rollout of echo is under way"):
            await act(world, steering, RolloutAction.ABORT)

    in_world(tmp_path, tell)


def test_a_rollback_from_a_failing_revision_does_not_wait(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, scaling=Scaling(min_scale=1, scale_to_zero_after_s=5.0))
        await world.advance(8.0)
        load = Load(world, bad={"echo-00002": 1.0})
        await load.run(5)
        view = await steering.rollback("echo", RollbackRequest())
        assert not view.is_returning
        assert world.shares()["echo-00001"] == 100.0

    in_world(tmp_path, tell)


def test_there_must_be_something_to_go_back_to(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(version(1))
        steering = world.commands()
        with pytest.raises(RefusedError, match="no earlier revision"):
            await steering.rollback("echo", RollbackRequest())
        with pytest.raises(InvalidInputError, match="this one serves"):
            await steering.rollback("echo", RollbackRequest(to="1"))
        with pytest.raises(InvalidInputError, match="a kept revision of echo: echo-00001"):
            await steering.rollback("echo", RollbackRequest(to="other-00001"))

    in_world(tmp_path, tell)


# --- rollouts --------------------------------------------------------------------------------------------------------


def test_a_bad_canary_is_taken_back(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        assert world.shares() == {"echo-00001": 100.0, "echo-00002": 0.0}
        load = Load(world, bad={"echo-00002": 1.0})
        await load.run(10)
        view = steering.rollout("echo")
        assert view.phase is Phase.TAKEN_BACK
        assert "went badly" in view.verdict
        assert [event.code for event in view.events] == ["begun", "ready", "judged_bad"]
        assert sum(load.failed.values()) / sum(load.sent.values()) < 0.01
        assert world.shares()["echo-00001"] == 100.0
        await world.advance(5.0)
        assert [each.revision for each in world.replicas()] == ["echo-00001"]
        codes = {reason.code for each in world.loop.autoscaler.core.decisions("echo", 50) for reason in each.reasons}
        assert {"rollout_ready", "rollout_judged_bad"} <= codes, "the decision log has it"
        deployed = world.registry.get("echo")
        assert deployed is not None
        assert deployed.candidate is None

    in_world(tmp_path, tell)

    async def again(world: ControlWorld) -> None:
        await world.advance(3.0)
        assert world.shares() == {"echo-00001": 100.0}, "not tried again by a restart"

    in_world(tmp_path, again)


def test_a_verdict_is_written_again_when_the_store_fails_and_when_the_control_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[bool] = []

    async def tell(world: ControlWorld) -> None:
        await two(world, rollout=CANARY)
        put = EmbeddedStore.put

        async def failing(store: EmbeddedStore, key: str, value: bytes, **rest: Any) -> Any:
            attempts.append(key.startswith("functions/"))
            raise StoreFaultError("the disk is full")

        monkeypatch.setattr(EmbeddedStore, "put", failing)
        await Load(world, bad={"echo-00002": 1.0}).run(10)
        assert world.commands().rollout("echo").phase is Phase.TAKEN_BACK
        assert attempts.count(True) > 2, "each second one attempt"
        monkeypatch.setattr(EmbeddedStore, "put", put)

    async def again(world: ControlWorld) -> None:
        await world.advance(3.0)
        assert world.shares() == {"echo-00001": 100.0}, "not tried again by a restart"

    in_world(tmp_path, tell)
    in_world(tmp_path, again)


def test_a_good_canary_goes_step_by_step_to_all_traffic(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await two(world, rollout=CANARY)
        load = Load(world)
        seen: list[float] = []
        shown: set[tuple[int, int | None]] = set()
        for _ in range(40):
            await load.run(1)
            percent = world.shares().get("echo-00002", 0.0)
            if percent == 50.0:
                shown.add((world.view().ready, world.view().desired))
            if not seen or seen[-1] != percent:
                seen.append(percent)
        assert seen == [1.0, 50.0, 100.0]
        assert shown == {(2, 2)}, "ready and wanted count both revisions"
        assert world.shares() == {"echo-00002": 100.0}

    in_world(tmp_path, tell)


def test_a_canary_goes_on_after_a_restart(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await two(world, rollout=CANARY)
        await Load(world).run(17)
        assert world.shares()["echo-00002"] == 50.0

    async def again(world: ControlWorld) -> None:
        assert world.shares() == {"echo-00001": 100.0, "echo-00002": 0.0}, "nothing of it runs yet"
        load = Load(world, bad={"echo-00002": 0.5})
        await load.run(3)
        assert world.shares()["echo-00002"] == 50.0
        left_s = world.commands().rollout("echo").window_left_s
        assert left_s is not None
        assert left_s > 5.0, "the window begins anew"
        await load.run(10)
        assert world.commands().rollout("echo").phase is Phase.TAKEN_BACK

    in_world(tmp_path, tell)
    in_world(tmp_path, again)


def test_a_window_that_lies_ahead_of_the_clock_begins_anew(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        load = Load(world)
        await load.run(17)
        deployed = world.registry.get("echo")
        assert deployed is not None
        assert deployed.rollout is not None
        ahead = replace(deployed.rollout, since=deployed.rollout.since + 3600.0)
        world.registry.roll("echo", ahead)
        world.loop.rollouts._windows.clear()  # as in a process that starts with its clock set back by an hour
        await load.run(15)
        assert steering.rollout("echo").phase is Phase.PROMOTED

    in_world(tmp_path, tell)


def test_a_canary_that_breaks_has_no_traffic_until_it_is_ready_again(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await two(world, rollout=CANARY)
        await Load(world).run(3)
        assert world.shares()["echo-00002"] == 1.0
        (replica,) = (each for each in world.replicas() if each.revision == "echo-00002")
        world.backend.crash(replica.id, "killed")
        await world.settle()
        assert world.shares() == {"echo-00001": 100.0, "echo-00002": 0.0}, "in the very next table"

    in_world(tmp_path, tell)


@pytest.mark.parametrize(("streaming", "overdue"), [(60, 0), (0, 60)])
def test_streams_that_go_on_are_not_overdue(tmp_path: Path, streaming: int, overdue: int) -> None:
    """Sixty chats that take minutes, each begun at once: both revisions look alike, and nothing is wrong."""

    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        await world.advance(3.0)
        for revision in ("echo-00001", "echo-00002"):
            world.gateways.demands[revision] = demand(revision, arrivals=60, streaming=streaming)
        await world.advance(CANARY.canary_window_s + 2.0)
        view = steering.rollout("echo")
        assert view.new is not None
        assert view.new.overdue == overdue
        assert (view.phase is Phase.TAKEN_BACK) == bool(overdue)

    in_world(tmp_path, tell)


def test_a_canary_that_hangs_passes_no_step(tmp_path: Path) -> None:
    """Seconds of good answers, then none: too few are overdue to judge by, and it may not go on either."""

    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        await Load(world, rps=2000.0).run(int(0.6 * CANARY.canary_window_s))
        report = world.gateways.demands["echo-00002"]
        world.gateways.demands["echo-00002"] = replace(report, arrivals=report.arrivals + 2)
        await world.advance(0.9 * CANARY.canary_window_s)
        view = steering.rollout("echo")
        assert (view.step, view.events[-1].code) == (1, "stalled")
        world.gateways.demands["echo-00002"] = replace(report, arrivals=report.arrivals + 4, cancelled=2)
        await world.advance(2.0)
        assert steering.rollout("echo").step == 1, "clients that give up tell nothing"
        world.gateways.demands["echo-00002"] = replace(
            report,
            arrivals=report.arrivals + 4,
            cancelled=2,
            answered=report.answered + 2,
            within_sla=report.within_sla + 2,
        )
        await world.advance(2.0)
        assert steering.rollout("echo").step == 2

    in_world(tmp_path, tell)


def test_the_rollout_of_a_superseded_canary_ends(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        await Load(world).run(3)
        await world.deploy(version(3, rollout=CANARY))
        assert world.shares().get("echo-00002", 0.0) == 0.0
        await Load(world).run(5)
        assert steering.rollout("echo").candidate == "echo-00003"
        assert world.shares()["echo-00003"] == 1.0
        view = await steering.rollback("echo", RollbackRequest())
        assert view.candidate is None
        assert world.shares()["echo-00001"] == 100.0
        assert steering.rollout("echo").phase is Phase.ABORTED

    in_world(tmp_path, tell)


def test_a_gradual_rollout_needs_no_figures(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await two(world, rollout=RolloutPlan(duration_s=20.0))
        percents = []
        for _ in range(30):
            await world.advance(1.0)
            percents.append(world.shares().get("echo-00002", 0.0))
            assert sum(world.shares().values()) == 100.0
        assert percents[-1] == 100.0
        assert percents == sorted(percents)
        assert len(set(percents)) > 10

    in_world(tmp_path, tell)


def test_a_third_revision_joins_a_gradual_rollout_and_takes_it_over(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await two(world, rollout=RolloutPlan(duration_s=20.0))
        await world.advance(8.0)
        assert 1.0 < world.shares()["echo-00002"] < 100.0
        await world.deploy(version(3, rollout=RolloutPlan(duration_s=20.0)))
        seen = set()
        for _ in range(40):
            await world.advance(1.0)
            assert sum(world.shares().values()) == 100.0
            seen.add(tuple(sorted(id_ for id_, percent in world.shares().items() if percent > 0)))
        assert ("echo-00001", "echo-00002", "echo-00003") in seen
        assert world.shares() == {"echo-00003": 100.0}

    in_world(tmp_path, tell)


def test_a_deleted_function_takes_its_rollout_along(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        await Load(world).run(3)
        assert world.meter.of("echo-00002").requests > 0
        await world.delete("echo")
        await world.advance(8.0)
        assert world.replicas() == []
        assert repr(world.loop.rollouts) == "<Rollouts 0 under way>"
        assert world.meter.of("echo-00002").requests == 0, "nothing is left of it"
        await world.deploy(version(3, rollout=CANARY))
        await world.advance(3.0)
        assert world.shares() == {"echo-00003": 100.0}, "the first of its life has nothing to be compared with"
        with pytest.raises(RefusedError, match="has been rolled out"):
            steering.rollout("echo")

    in_world(tmp_path, tell)


def test_a_shadow_serves_none_and_is_promoted_by_hand(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=RolloutPlan(shadow_percent=10.0))
        assert world.route("echo-00002").shadow_percent == 0.0, "nothing of it is ready"
        with pytest.raises(RefusedError, match="no ready replica yet"):
            await act(world, steering, RolloutAction.PROMOTE)
        await world.advance(3.0)
        assert (world.route("echo-00002").percent, world.route("echo-00002").shadow_percent) == (0.0, 10.0)
        seen = ShadowSeen(requests=10, output_differs=7, latency=((5, 10),), served_latency=((3, 10),))
        world.gateways.demands["echo-00002"] = replace(demand("echo-00002"), shadow=seen)
        await world.advance(20.0)
        assert any(each.revision == "echo-00002" for each in world.replicas()), "kept awake though no client asks"
        shadow = steering.rollout("echo").shadow
        assert shadow is not None
        assert (shadow.requests, shadow.output_differs) == (10, 7)
        assert (shadow.p50_s, shadow.served_p50_s) == (5.5e-6, 3.5e-6)
        await act(world, steering, RolloutAction.PROMOTE)
        assert world.shares()["echo-00002"] == 100.0
        assert world.route("echo-00002").shadow_percent == 0.0

    in_world(tmp_path, tell)


def test_a_rollout_by_hand_can_be_paused_resumed_changed_and_aborted(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world)
        await world.advance(5.0)
        await split(world, steering, SplitRequest(split={"1": 100.0}))
        await world.advance(5.0)
        with pytest.raises(InvalidInputError, match="rising percents"):
            await act(world, steering, RolloutAction.BEGIN, canary_steps="5,1")
        with pytest.raises(InvalidInputError, match="exactly one of"):
            await act(world, steering, RolloutAction.BEGIN)
        with pytest.raises(InvalidInputError, match=r"got rollout-duration 0s; allowed: .*rollout-duration above 0s"):
            await act(world, steering, RolloutAction.BEGIN, rollout_duration="0s")
        view = await act(world, steering, RolloutAction.BEGIN, shadow_percent="10")
        assert (view.candidate, view.base) == ("echo-00002", "echo-00001")
        await world.advance(3.0)
        view = await act(world, steering, RolloutAction.BEGIN, canary_steps="1,50", canary_window="10s")
        assert view.steps == (1.0, 50.0)
        load = Load(world)
        await load.run(3)
        await act(world, steering, RolloutAction.PAUSE)
        await load.run(30)
        assert world.shares()["echo-00002"] == 1.0
        with pytest.raises(RefusedError, match="it cannot pause"):
            await act(world, steering, RolloutAction.PAUSE)
        await act(world, steering, RolloutAction.RESUME)
        await load.run(12)
        assert world.shares()["echo-00002"] == 50.0
        await act(world, steering, RolloutAction.ABORT)
        assert world.shares() == {"echo-00001": 100.0, "echo-00002": 0.0}
        await load.run(5)
        assert world.shares() == {"echo-00001": 100.0}

    in_world(tmp_path, tell)


@pytest.mark.parametrize("action", [*RolloutAction, None])
def test_what_is_asked_for_and_cannot_be_kept_is_not_done(tmp_path: Path, action: RolloutAction | None) -> None:
    async def tell(world: ControlWorld) -> None:
        steering = await two(world, rollout=CANARY)
        await Load(world).run(3)
        if action is RolloutAction.RESUME:
            await act(world, steering, RolloutAction.PAUSE)
        before, published = steering.rollout("echo"), world.shares()
        await world.store.close()
        with pytest.raises(StoreFaultError):
            if action is None:
                await steering.rollback("echo", RollbackRequest())
            elif action is RolloutAction.BEGIN:
                await act(world, steering, action, canary_steps="5", canary_window="10s")
            else:
                await act(world, steering, action)
        assert steering.rollout("echo") == before
        await world.advance(1.0)
        assert world.shares() == published == {"echo-00001": 99.0, "echo-00002": 1.0}
        if action is not RolloutAction.RESUME:
            await Load(world).run(12)
            assert world.shares()["echo-00002"] == 50.0, "what is decided without asking holds in memory"

    in_world(tmp_path, tell)


def test_a_rollout_needs_another_revision_than_the_serving_one(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(version(1))
        await world.advance(2.0)
        steering = world.commands()
        with pytest.raises(InvalidInputError, match="another revision than this one"):
            await act(world, steering, RolloutAction.BEGIN, canary_steps="1")
        with pytest.raises(RefusedError, match="has been rolled out"):
            steering.rollout("echo")

    in_world(tmp_path, tell)


def test_a_canary_finds_room_beside_several_and_never_takes_the_only_place(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("other", scaling=Scaling(min_scale=2)))
        await world.deploy(version(1))
        await world.advance(2.0)
        await world.deploy(version(2, rollout=CANARY))
        await world.advance(70.0)
        assert (world.shares()["echo-00001"], world.shares()["echo-00002"]) == (100.0, 0.0)
        assert any(each.revision == "echo-00001" for each in world.replicas(ReplicaState.READY))
        assert "no accelerator has room" in (world.view().message or "")

    in_world(tmp_path, tell)
