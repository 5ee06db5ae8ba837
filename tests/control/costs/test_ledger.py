"""The ledger of device time: samples and replicas in, amounts out."""

import random
from dataclasses import replace

import pytest

from tidegate.control.costs import ledger as ledger_of
from tidegate.control.costs.ledger import Caller, Checkpoint, DeviceTime, HeldPart, Ledger, Place, TenantTime, shifted
from tidegate.records.codec import decode, encode
from tidegate.records.costs import OTHER_TENANTS
from tidegate.records.gateway_sample import GatewaySample, GroupTraffic, RevisionDemand, TokensSeen
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.records.tenants import TenantUse

GPU = Place("echo", "gpu")
DOLLAR_A_SECOND = 3600.0


def held(*, part: float = 1.0, ready_at: float | None = None, name: str = "r1", created_at: float = 0.0) -> HeldPart:
    return HeldPart(
        id=name,
        function="echo",
        accelerator="gpu",
        part=part,
        price_per_hour=DOLLAR_A_SECOND,
        created_at=created_at,
        ready_at=ready_at,
    )


def sample(busy_s: float, *, slot_s: float = 0.0, name: str = "r1", incarnation: str = "a") -> ReplicaSample:
    return ReplicaSample(
        replica=name,
        revision="echo-00001",
        group="gpu",
        incarnation=incarnation,
        sequence=1,
        uptime_s=0.0,
        state=ReplicaState.READY,
        limit=1,
        in_flight=0,
        in_flight_inferences=0,
        queued=0,
        requests=0,
        inferences=0,
        failures=0,
        cancelled=0,
        busy_s=busy_s,
        in_flight_request_s=slot_s,
        in_flight_inference_s=0.0,
        execution_s=0.0,
        queue_s=0.0,
    )


def use(tenant: str, slot_s: float, requests: int = 1, tokens: int = 0) -> TenantUse:
    return TenantUse(
        function="echo", tenant=tenant, requests=requests, inferences=requests, tokens=tokens, slot_s=slot_s
    )


def worker(
    *uses: TenantUse,
    served: int = 0,
    failures: int = 0,
    tokens: int = 0,
    sequence: int = 1,
    incarnation: str = "a",
    uptime_s: float = 1.0,
) -> GatewaySample:
    group = GroupTraffic(group="gpu", requests=served + failures, inferences=2 * served, failures=failures)
    demand = RevisionDemand(
        function="echo",
        revision="echo-00001",
        arrivals=served,
        arrivals_inferences=served,
        refused=0,
        expired=0,
        cancelled=0,
        answered=served,
        failed=failures,
        within_sla=served,
        waiting=0,
        waiting_inferences=0,
        oldest_waiting_s=0.0,
        waiting_request_s=0.0,
        waiting_inference_s=0.0,
        groups=(group,) if served or failures else (),
        tokens=TokensSeen(prompt=tokens, completion=0) if tokens else None,
    )
    return GatewaySample(
        worker="g0",
        incarnation=incarnation,
        sequence=sequence,
        uptime_s=uptime_s,
        table_epoch=1,
        table_number=1,
        connections=0,
        demands=(demand,),
        uses=uses,
    )


def seconds(time: DeviceTime) -> tuple[float, float, float]:
    return (time.starting_s, time.busy_s, time.idle_s)


# --- replicas --------------------------------------------------------------------------------------------------------


def test_the_time_of_a_replica_is_starting_then_busy_or_idle_from_its_order_to_its_end() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held()], (), 1.0)
    ledger.observe([held(ready_at=2.5)], (), 3.0)
    ledger.replica_seen(sample(1.0), 2.5, 4.5)
    ledger.replica_seen(sample(1.0), 2.5, 6.0)
    ledger.ended("r1", 7.0)
    time = ledger.unstored.devices[GPU]
    assert seconds(time) == pytest.approx((2.5, 1.0, 3.5))
    assert time.total_cost == pytest.approx(7.0)


def test_a_replica_with_half_a_device_counts_half_its_time_at_half_the_price() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held(part=0.5, ready_at=0.0)], (), 0.0)
    ledger.replica_seen(sample(4.0), 0.0, 10.0)
    time = ledger.unstored.devices[GPU]
    assert seconds(time) == pytest.approx((0.0, 2.0, 3.0))
    assert (time.busy_cost, time.idle_cost) == pytest.approx((2.0, 3.0))


def test_another_price_counts_from_the_second_in_which_it_is_in_force() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held(ready_at=0.0)], (), 0.0)
    ledger.replica_seen(sample(0.0), 0.0, 10.0)
    ledger.observe([replace(held(ready_at=0.0), price_per_hour=2 * DOLLAR_A_SECOND)], (), 10.0)
    ledger.replica_seen(sample(0.0), 0.0, 20.0)
    assert ledger.unstored.devices[GPU].idle_cost == pytest.approx(10.0 + 20.0)


def test_more_busy_time_than_has_passed_counts_later() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held(ready_at=0.0)], (), 0.0)
    ledger.replica_seen(sample(1.3), 0.0, 1.0)
    ledger.replica_seen(sample(1.9), 0.0, 2.0)
    assert seconds(ledger.unstored.devices[GPU]) == pytest.approx((0.0, 1.9, 0.1))


def test_a_queue_proxy_that_began_again_counts_from_zero() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held(ready_at=0.0)], (), 0.0)
    ledger.replica_seen(sample(5.0), 0.0, 10.0)
    ledger.replica_seen(sample(2.0, incarnation="b"), 0.0, 20.0)
    assert ledger.unstored.devices[GPU].busy_s == pytest.approx(7.0)


def test_a_replica_without_samples_is_idle_after_a_while() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held(ready_at=0.0)], (), 10.0)
    assert GPU not in ledger.unstored.devices, "it may be busy: its sample is awaited"
    ledger.observe([held(ready_at=0.0)], (), 16.0)
    assert seconds(ledger.unstored.devices[GPU]) == (0.0, 0.0, 16.0)


def test_a_replica_that_is_not_there_any_more_has_ended() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held()], (), 1.0)
    ledger.observe([], (), 3.0)
    ledger.observe([], (), 9.0)
    assert seconds(ledger.unstored.devices[GPU]) == (3.0, 0.0, 0.0)


def test_replicas_that_ran_before_the_ledger_count_from_its_start() -> None:
    ledger = Ledger(100.0)
    ledger.observe([held(created_at=5.0, ready_at=6.0)], (), 101.0)
    ledger.replica_seen(sample(50.0), 6.0, 102.0)
    assert ledger.unstored.devices[GPU].total_s == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(20))
def test_busy_idle_and_starting_add_up_to_the_life_of_every_replica(seed: int) -> None:
    rng = random.Random(seed)
    ledger, whole, now = Ledger(0.0), 0.0, 0.0
    living: dict[str, tuple[float, float, float]] = {}
    busy: dict[str, float] = {}
    taken = ledger_of.Batch()
    for number in range(200):
        now += rng.choice((0.0, 0.3, 1.0, 1.0, 20.0))
        if rng.random() < 0.2:
            name = f"r{number}"
            living[name], busy[name] = (now, now + rng.random() * 10, rng.choice((0.25, 0.5, 1.0))), 0.0
        ledger.observe(
            [
                held(name=name, created_at=born, ready_at=ready if ready <= now else None, part=part)
                for name, (born, ready, part) in living.items()
            ],
            (),
            now,
        )
        for name, (_, ready, _) in living.items():
            if ready <= now and rng.random() < 0.7:
                busy[name] = rng.uniform(busy[name], max(busy[name], now - ready + 0.5))
                ledger.replica_seen(sample(busy[name], name=name), ready, now)
        for name in [name for name in living if rng.random() < 0.05]:
            born, _, part = living.pop(name)
            ledger.ended(name, now)
            whole += (now - born) * part
        if rng.random() < 0.1:
            taken.add(ledger.take())
    for name, (born, _, part) in living.items():
        ledger.ended(name, now)
        whole += (now - born) * part
    taken.add(ledger.take())
    time = taken.devices[GPU]
    assert time.total_s == pytest.approx(whole)
    assert time.total_cost == pytest.approx(whole)
    assert dict(ledger.device_totals())[GPU].total_s == pytest.approx(whole)
    assert min(seconds(time)) >= 0.0


# --- gateway workers -------------------------------------------------------------------------------------------------


def test_tenants_count_by_what_workers_report_and_repeats_count_once() -> None:
    ledger = Ledger(0.0)
    first = worker(use("acme", 2.0, 3, 10), served=3)
    ledger.gateway_seen(first)
    ledger.gateway_seen(first)
    ledger.gateway_seen(worker(use("acme", 2.5, 4, 15), use("second", 1.0), served=5, sequence=2))
    assert ledger.unstored.tenants == {
        Caller("echo", "acme"): TenantTime(slot_s=2.5, requests=4, inferences=4, tokens=15),
        Caller("echo", "second"): TenantTime(slot_s=1.0, requests=1, inferences=1),
    }
    assert ledger.unstored.devices[GPU] == DeviceTime(requests=5, inferences=10)


def test_requests_without_a_tenant_have_the_slot_time_that_replicas_report() -> None:
    ledger = Ledger(0.0)
    ledger.observe([held(ready_at=0.0)], {"echo"}, 0.0)
    ledger.replica_seen(sample(1.0, slot_s=3.0), 0.0, 1.0)
    ledger.gateway_seen(worker(served=4, failures=1, tokens=70))
    assert ledger.unstored.tenants == {Caller("echo", ""): TenantTime(slot_s=3.0, requests=4, inferences=8, tokens=70)}


def test_a_worker_that_began_again_counts_from_zero_and_a_late_sample_of_it_counts_once() -> None:
    ledger = Ledger(0.0)
    ledger.gateway_seen(worker(use("acme", 2.0, 3)))
    ledger.gateway_seen(worker(use("acme", 1.0, 1), incarnation="b"))
    ledger.gateway_seen(worker(use("acme", 2.0, 4), sequence=2))
    ledger.gateway_seen(worker(use("acme", 1.5, 2), incarnation="b", sequence=2))
    assert dict(ledger.tenant_totals())[Caller("echo", "acme")].requests == 4 + 2


def test_counters_that_began_again_within_a_worker_count_from_zero() -> None:
    ledger = Ledger(0.0)
    ledger.gateway_seen(worker(use("acme", 2.0, 3)))
    ledger.gateway_seen(worker(use("acme", 0.5, 1), sequence=2))
    assert dict(ledger.tenant_totals())[Caller("echo", "acme")].requests == 4


def test_what_an_old_worker_counted_before_the_first_ledger_is_not_counted() -> None:
    ledger = Ledger(0.0)
    ledger.gateway_seen(worker(use("acme", 2.0, 3), uptime_s=60.0))
    assert not ledger.unstored
    ledger.gateway_seen(worker(use("acme", 2.5, 4), uptime_s=61.0, sequence=2))
    assert ledger.unstored.tenants[Caller("echo", "acme")].requests == 1


def test_too_many_tenants_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_of, "MAX_PAIRS", 2)
    ledger = Ledger(0.0)
    ledger.gateway_seen(worker(*(use(name, 1.0) for name in ("a", "b", "c", "d"))))
    names = {caller.tenant: time.requests for caller, time in ledger.unstored.tenants.items()}
    assert names == {"a": 1, "b": 1, OTHER_TENANTS: 2}


def test_totals_of_functions_that_are_gone_are_dropped_and_their_amounts_are_stored() -> None:
    ledger = Ledger(0.0)
    ledger.gateway_seen(worker(use("acme", 2.0), served=1))
    ledger.keep(())
    assert ledger.unstored.tenants and ledger.unstored.devices
    ledger.take()
    ledger.keep(())
    assert not list(ledger.device_totals()) and not list(ledger.tenant_totals())


# --- from one control process to the next ----------------------------------------------------------------------------


def test_a_successor_counts_nothing_twice_and_what_happened_meanwhile() -> None:
    """The clock of the successor is 1000 s ahead: it was set forward."""
    first = Ledger(0.0)
    first.observe([held(ready_at=0.0)], (), 0.0)
    first.replica_seen(sample(4.0), 0.0, 10.0)
    first.gateway_seen(worker(use("acme", 2.0, 3), served=3))
    stored = first.take()
    kept = encode(first.checkpoint(10.0))
    first.replica_seen(sample(6.0), 0.0, 13.0)  # Killed before this is stored.

    second = Ledger(1020.0, shifted(decode(kept, Checkpoint), 1000.0))
    second.observe([held(created_at=1000.0)], (), 1020.0)  # Adopted: not known to be ready yet.
    second.replica_seen(sample(9.0), 1020.5, 1021.0)
    second.gateway_seen(worker(use("acme", 5.0, 7), served=8, sequence=9, uptime_s=600.0))
    stored.add(second.take())
    assert seconds(stored.devices[GPU]) == pytest.approx((0.0, 9.0, 12.0))
    assert stored.tenants[Caller("echo", "acme")] == TenantTime(slot_s=5.0, requests=7, inferences=7)
    assert stored.devices[GPU].requests == 8


def test_a_successor_waits_for_the_first_samples_after_a_long_time_without_a_control_process() -> None:
    first = Ledger(0.0)
    first.observe([held(ready_at=0.0)], (), 0.0)
    first.replica_seen(sample(0.0), 0.0, 1.0)
    first.take()
    second = Ledger(101.0, decode(encode(first.checkpoint(1.0)), Checkpoint))
    second.observe([held()], (), 101.0)
    second.replica_seen(sample(100.0), 101.1, 101.5)
    assert seconds(second.unstored.devices[GPU]) == pytest.approx((0.0, 100.0, 0.5))


def test_a_replica_of_after_the_checkpoint_counts_from_its_order() -> None:
    first = Ledger(0.0)
    kept = first.checkpoint(10.0)
    second = Ledger(20.0, kept)
    second.observe([held(created_at=12.0)], (), 20.0)
    assert seconds(second.unstored.devices[GPU]) == (8.0, 0.0, 0.0)


def test_an_adopted_replica_that_no_checkpoint_knows_may_have_been_ready_for_long() -> None:
    ledger = Ledger(20.0, Ledger(0.0).checkpoint(0.0))
    unknown = replace(held(created_at=2.0), adopted=True)
    ledger.observe([unknown], (), 20.0)
    ledger.observe([replace(unknown, ready_at=5.0)], (), 21.0)
    ledger.replica_seen(sample(7.0), 5.0, 22.0)
    assert seconds(ledger.unstored.devices[GPU]) == pytest.approx((3.0, 7.0, 10.0))


def test_amounts_that_could_not_be_stored_are_stored_with_the_next() -> None:
    ledger = Ledger(0.0)
    ledger.gateway_seen(worker(use("acme", 2.0, 3)))
    taken = ledger.take()
    ledger.gateway_seen(worker(use("acme", 3.0, 4), sequence=2))
    ledger.restore(taken)
    assert ledger.take().tenants[Caller("echo", "acme")].requests == 4
    assert dict(ledger.tenant_totals())[Caller("echo", "acme")].requests == 4
