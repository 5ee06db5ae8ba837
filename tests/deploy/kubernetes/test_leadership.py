"""Who leads, for how long, and what one that leads no longer may write."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.process.leadership import HeldError, Leadership
from tidegate.deploy.kubernetes.resources.leases import Candidate, Verdict, epoch_of, holder_of, judge, released, taken

NOW = "2026-01-01T00:00:00.000000Z"
ONE, TWO = (Candidate(identity=name, deployment="demo", lasts_s=15) for name in ("one", "two"))
AWAY = ClusterError("the API server does not answer")


class Cluster(KubernetesApi):
    """One Lease under optimistic concurrency, and a clock that sleeps advance."""

    def __init__(self) -> None:
        super().__init__(None, "here", random.Random(1))
        self.lease: Object | None = None
        self.time = 0.0
        self.is_away = False
        self._version = 0

    async def call(self, method: str, path: str, body: Object | None = None, **_: Any) -> Object:
        if self.is_away:
            raise AWAY
        if method == "GET":
            if self.lease is None:
                raise RefusedError(404, "NotFound", "not found")
            return self.lease
        assert body is not None
        version = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if method == "POST" and self.lease is not None:
            raise RefusedError(409, "AlreadyExists", "it exists")
        if method == "PUT" and body["metadata"]["resourceVersion"] != version:
            raise RefusedError(409, "Conflict", "the object has been modified")
        self._version += 1
        self.lease = body | {"metadata": body["metadata"] | {"resourceVersion": str(self._version)}}
        return self.lease


class Bench:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.notes: list[str | None] = []
        self.during: list[Callable[[], object]] = []
        """What happens during the next sleeps, in turn."""

    async def sleep(self, seconds: float) -> None:
        self.cluster.time += seconds
        if self.during:
            self.during.pop(0)()
        await asyncio.sleep(0)

    def of(self, me: Candidate) -> Leadership:
        return Leadership(
            self.cluster,
            "here",
            me,
            stamp=lambda: f"{self.cluster.time}",
            note=lambda _, text: self.notes.append(text),
            now=lambda: self.cluster.time,
            sleep=self.sleep,
        )

    async def led(self, me: Candidate, at_least: int = 1) -> Leadership:
        found = self.of(me)
        await found.lead(at_least, lambda _: None, may_wait=True)
        return found


def play(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Bench())

    asyncio.run(run())


def test_a_lease_is_taken_when_it_is_free_ours_or_has_not_changed_for_its_time() -> None:
    lease = taken(None, ONE, 4, NOW) | {}
    assert judge(None, TWO, 0.0) is Verdict.TAKE
    assert judge(lease, ONE, 0.0) is Verdict.TAKE
    assert judge(lease, TWO, 14.9) is Verdict.WAIT
    assert judge(lease, TWO, 15.0) is Verdict.TAKE
    assert judge(released(lease, NOW), TWO, 0.0) is Verdict.TAKE


def test_the_epoch_grows_with_each_leader_and_is_not_below_that_of_the_state_directory() -> None:
    async def scenario(bench: Bench) -> None:
        first = await bench.led(ONE, at_least=7)
        assert first.epoch == 7
        again = await bench.led(ONE, at_least=3)
        assert again.epoch == 8, "a restart over the same directory, which one process has"
        await again.release()
        assert (await bench.led(TWO)).epoch == 9

    play(scenario)


def test_a_standby_leads_when_the_leader_has_not_renewed_for_the_time_of_the_lease() -> None:
    async def scenario(bench: Bench) -> None:
        leader = await bench.led(ONE)
        seen: list[str] = []
        second = bench.of(TWO)
        await second.lead(1, seen.append, may_wait=True)
        assert set(seen) == {"one"}
        assert bench.cluster.time >= 15.0
        assert leader.left_s() < 0.0 < second.left_s(), "the first one has stopped before the second begins"
        assert epoch_of(bench.cluster.lease) == 2

    play(scenario)


def test_a_leader_that_cannot_renew_stops_writing_before_another_may_lead_and_goes_on_if_none_did() -> None:
    async def scenario(bench: Bench) -> None:
        leader = await bench.led(ONE)
        bench.cluster.is_away = True
        seen: list[float] = []
        bench.during = [lambda: seen.append(leader.left_s())] * 6
        bench.during.append(lambda: setattr(bench.cluster, "is_away", False))
        bench.during.append(lambda: seen.append(leader.left_s()))
        bench.during.append(lambda: leader.depose("the test ends"))
        await leader.keep()
        assert [each > 0 for each in seen] == [True, True, True, True, False, False, True]
        assert bench.cluster.lease is not None
        assert (holder_of(bench.cluster.lease), epoch_of(bench.cluster.lease)) == ("one", 1)
        assert any("could not be renewed for 10 s" in (text or "") for text in bench.notes)

    play(scenario)


def test_a_leader_whose_lease_another_has_is_deposed_for_good() -> None:
    async def scenario(bench: Bench) -> None:
        leader = await bench.led(ONE)
        assert bench.cluster.lease is not None
        made = taken(bench.cluster.lease, TWO, 2, NOW)
        other = made | {"metadata": made["metadata"] | {"resourceVersion": "99"}}
        bench.during = [lambda: setattr(bench.cluster, "lease", other)]
        await leader.keep()
        assert leader.deposed.is_set()
        assert leader.left_s() == 0.0
        assert "two leads by epoch 2" in leader.why
        await leader.release()
        assert bench.cluster.lease is not None
        assert holder_of(bench.cluster.lease) == "two", "it is not ours to give back"

    play(scenario)


def test_a_lease_that_is_deleted_or_labelled_by_others_is_kept() -> None:
    async def scenario(bench: Bench) -> None:
        leader = await bench.led(ONE, at_least=5)

        def label() -> None:
            assert bench.cluster.lease is not None
            bench.cluster.lease = bench.cluster.lease | {
                "metadata": bench.cluster.lease["metadata"] | {"resourceVersion": "77"}
            }

        bench.during = [label, lambda: setattr(bench.cluster, "lease", None), lambda: leader.depose("the test ends")]
        await leader.keep()
        assert bench.cluster.lease is not None
        assert (holder_of(bench.cluster.lease), epoch_of(bench.cluster.lease)) == ("one", 5)

    play(scenario)


def test_a_duration_that_others_have_edited_makes_no_second_leader_and_is_taken_back() -> None:
    async def scenario(bench: Bench) -> None:
        leader = await bench.led(ONE)
        assert bench.cluster.lease is not None
        for edited in (1, 1_000_000, None):
            lease = bench.cluster.lease
            bench.cluster.lease = {
                **lease,
                "metadata": lease["metadata"] | {"resourceVersion": f"edited {edited}"},
                "spec": lease["spec"] | {"leaseDurationSeconds": edited},
            }
            assert judge(bench.cluster.lease, TWO, 14.9) is Verdict.WAIT
            await leader._renew()
            assert bench.cluster.lease["spec"]["leaseDurationSeconds"] == 15

    play(scenario)


def test_a_lease_that_cannot_be_written_is_tried_again_after_a_pause_and_said() -> None:
    async def scenario(bench: Bench) -> None:
        call = bench.cluster.call
        puts: list[float] = []

        async def refusing(method: str, path: str, body: Object | None = None, **more: Any) -> Object:
            if method != "GET" and len(puts) < 3:
                puts.append(bench.cluster.time)
                raise RefusedError(500, "InternalError", "etcd is full")
            return await call(method, path, body, **more)

        bench.cluster.call = refusing  # type: ignore[method-assign]  # of this test
        await bench.led(ONE)
        assert puts == [0.0, 2.0, 4.0]
        assert "it cannot be taken: etcd is full" in bench.notes
        assert bench.notes[-1] is None

    play(scenario)


def test_a_second_deployment_in_the_namespace_is_refused_while_the_first_lives() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.led(ONE)

        def renew() -> None:
            assert bench.cluster.lease is not None
            bench.cluster.lease = bench.cluster.lease | {
                "metadata": bench.cluster.lease["metadata"] | {"resourceVersion": str(bench.cluster.time)}
            }

        bench.during = [renew] * 3
        other = bench.of(Candidate(identity="three", deployment="other"))
        with pytest.raises(HeldError, match="namespace here is used by the deployment demo"):
            await other.lead(1, lambda _: None, may_wait=True)
        bench.during = [renew] * 3
        with pytest.raises(HeldError, match="several control processes need one store"):
            await bench.of(TWO).lead(1, lambda _: None, may_wait=False)

    play(scenario)


def test_what_is_written_is_bounded_by_the_fence() -> None:
    class Closed:
        why = "another control process leads"

        def left_s(self) -> float:
            return 0.0

    async def run() -> None:
        api = KubernetesApi(None, "here", random.Random(1), fence=Closed())
        with pytest.raises(ClusterError, match="nothing is written: another control process leads"):
            await api.create("/pods", {})

    asyncio.run(run())
