"""Cost reports: their rows add up to what the ledger counted, however they are grouped."""

import random

import pytest

from tidegate.control.costs.ledger import NO_TENANT, Batch, Caller, DeviceTime, Place, TenantTime
from tidegate.control.costs.report import IDLE, STARTING, UNNAMED, CostReport, report
from tidegate.records.costs import GroupBy


def batch(time: DeviceTime, **slots: float) -> Batch:
    """One function on one accelerator, and slot seconds by tenant."""
    tenants = {Caller("f", name): TenantTime(slot_s=slot_s, requests=10, tokens=100) for name, slot_s in slots.items()}
    return Batch({Place("f", "gpu"): time}, tenants)


def busy(seconds: float, idle_s: float = 0.0, starting_s: float = 0.0) -> DeviceTime:
    """A device for two a second."""
    return DeviceTime(seconds, idle_s, starting_s, 2 * seconds, 2 * idle_s, 2 * starting_s)


def costs(found: CostReport) -> dict[str, float]:
    return {name: row.time.total_cost for name, row in found.rows.items()}


def test_busy_time_is_divided_by_slot_seconds_and_idle_time_is_a_row_of_its_own() -> None:
    found = report({0: batch(busy(8.0, 4.0, 1.0), acme=3.0, second=1.0)}, GroupBy.TENANT)
    assert costs(found) == {"acme": 12.0, IDLE: 8.0, "second": 4.0, STARTING: 2.0}
    assert found.total.time.total_cost == 26.0
    assert found.rows["acme"].per_1k_requests == 1200.0
    assert found.rows["acme"].per_million_tokens == 120_000.0
    assert found.rows[IDLE].per_1k_requests is None


def test_idle_time_can_be_spread_by_the_same_rule() -> None:
    found = report({0: batch(busy(8.0, 4.0, 1.0), acme=3.0, second=1.0)}, GroupBy.TENANT, is_spread=True)
    assert costs(found) == pytest.approx({"acme": 19.5, "second": 6.5})


def test_time_of_a_function_without_any_use_stays_idle_when_it_is_spread() -> None:
    found = report({0: batch(busy(0.0, 4.0))}, GroupBy.TENANT, is_spread=True)
    assert costs(found) == {IDLE: 8.0}


def test_each_bucket_is_divided_by_its_own_use() -> None:
    buckets = {0: batch(busy(8.0), acme=1.0), 300: batch(busy(2.0), second=9.0)}
    assert costs(report(buckets, GroupBy.TENANT)) == {"acme": 16.0, "second": 4.0}


def test_a_bucket_in_which_no_request_ended_is_divided_by_the_use_of_all() -> None:
    buckets = {0: batch(busy(8.0)), 300: batch(busy(8.0), acme=3.0, second=1.0)}
    assert costs(report(buckets, GroupBy.TENANT)) == {"acme": 24.0, "second": 8.0}


def test_busy_time_without_any_slot_seconds_belongs_to_requests_without_a_tenant() -> None:
    assert costs(report({0: batch(busy(8.0))}, GroupBy.TENANT)) == {UNNAMED: 16.0}
    assert costs(report({0: batch(busy(8.0), **{NO_TENANT: 1.0})}, GroupBy.TENANT)) == {UNNAMED: 16.0}


def test_one_tenant_of_one_function() -> None:
    buckets = {0: batch(busy(8.0, 4.0), acme=3.0, second=1.0)}
    found = report(buckets, GroupBy.FUNCTION, tenant="acme")
    assert costs(found) == {"f": 12.0}
    assert found.total.time.requests == 10
    assert costs(report(buckets, GroupBy.ACCELERATOR, tenant="second")) == {"gpu": 4.0}
    assert not report(buckets, GroupBy.TENANT, function="other").rows


def everything(rng: random.Random) -> dict[int, Batch]:
    """Random amounts: functions without use, tenants without time, buckets without either."""
    found = {}
    for number in range(rng.randint(0, 6)):
        made = Batch()
        for function in ("a", "b", "c"):
            for accelerator in ("cpu", "gpu"):
                if rng.random() < 0.6:
                    busy_s, idle_s, starting_s = (rng.choice((0.0, rng.random())) for _ in range(3))
                    time = busy(busy_s, idle_s, starting_s)
                    made.devices[Place(function, accelerator)] = time
            for tenant in (NO_TENANT, "acme", "second"):
                if rng.random() < 0.4:
                    made.tenants[Caller(function, tenant)] = TenantTime(rng.random(), 3, 4, 5)
        found[number * 300] = made
    return found


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("is_spread", [False, True])
def test_the_rows_add_up_to_the_ledger_however_they_are_grouped(seed: int, is_spread: bool) -> None:
    buckets = everything(random.Random(seed))
    whole = DeviceTime()
    for each in buckets.values():
        for time in each.devices.values():
            whole.add(time)
    for by in GroupBy:
        total = report(buckets, by, is_spread=is_spread).total.time
        found = [total.busy_s, total.idle_s, total.starting_s, total.busy_cost, total.idle_cost, total.starting_cost]
        wanted = [whole.busy_s, whole.idle_s, whole.starting_s, whole.busy_cost, whole.idle_cost, whole.starting_cost]
        assert found == pytest.approx(wanted), by
        rows = report(buckets, by, is_spread=is_spread).rows.values()
        assert sum(row.time.total_cost for row in rows) == pytest.approx(whole.total_cost)


@pytest.mark.parametrize("seed", range(10))
def test_the_tenants_of_a_function_add_up_to_its_row(seed: int) -> None:
    buckets = everything(random.Random(seed))
    for name, row in report(buckets, GroupBy.FUNCTION).rows.items():
        assert report(buckets, GroupBy.TENANT, function=name).total.time.total_cost == pytest.approx(
            row.time.total_cost
        )
