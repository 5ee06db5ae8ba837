"""Budgets of stages: they add up to the SLA, time goes where it saves replicas, and graphs count their longest way."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.autoscaler.pipelines.budgets import Budgets, StageFacts, divided, stage_percentile
from tidegate.autoscaler.policies.smif.waiting import waiting_s


def chain(*services: float | None, rps: float = 20.0) -> list[StageFacts]:
    return [
        StageFacts(name=f"s{at}", after=(at - 1,) if at else (), service_s=each, rps=rps)
        for at, each in enumerate(services)
    ]


def sizes(found: Budgets) -> list[float]:
    return [each.budget_s for each in found.stages]


def ways(stages: list[StageFacts]) -> list[list[int]]:
    """All ways through the graph."""
    open_ = [[at] for at, each in enumerate(stages) if not each.after]
    done = []
    while open_:
        way = open_.pop()
        further = [at for at, each in enumerate(stages) if way[-1] in each.after]
        open_ += [[*way, at] for at in further]
        if not further:
            done.append(way)
    return done


def test_time_goes_where_it_saves_a_replica() -> None:
    """In proportion, 250 and 50 ms, *read* would need two replicas."""
    found = divided(0.3, 98.0, chain(0.1, 0.02))
    assert sizes(found) == pytest.approx([0.202, 0.098], abs=0.002)
    assert [each.replicas for each in found.stages] == [4, 1]
    assert found.percentile == 99.0


def test_unmeasured_stages_have_even_parts() -> None:
    found = divided(0.3, 98.0, chain(0.1, None, 0.02))
    assert sizes(found) == pytest.approx([0.1, 0.1, 0.1])
    assert not found.is_measured and found.is_feasible


def test_stages_that_take_longer_than_the_sla_have_it_in_proportion_and_say_so() -> None:
    found = divided(0.3, 98.0, chain(0.3, 0.1))
    assert sizes(found) == pytest.approx([0.225, 0.075])
    assert not found.is_feasible
    assert [each.replicas for each in found.stages] == [None, None] or found.stages[1].replicas is None


def test_a_target_of_its_own_is_kept_and_the_others_have_the_rest() -> None:
    first, _, third = chain(0.05, 0.05, 0.05)
    own = StageFacts(name="s1", after=(0,), service_s=0.05, rps=20.0, own_s=0.1)
    found = divided(0.5, 98.0, [first, own, third])
    assert found.stages[1].budget_s == 0.1 and found.stages[1].is_own
    assert sum(sizes(found)) == pytest.approx(0.5)


def test_branches_run_beside_each_other() -> None:
    """detect, then one of two readers, then page: both ways have the whole SLA."""
    stages = [
        StageFacts(name="detect", after=(), service_s=0.1, rps=20.0),
        StageFacts(name="latin", after=(0,), service_s=0.1, rps=2.0),
        StageFacts(name="kanji", after=(0,), service_s=0.3, rps=18.0),
        StageFacts(name="page", after=(1, 2), service_s=0.05, rps=20.0),
    ]
    found = sizes(divided(0.8, 98.0, stages))
    assert found[0] + found[2] + found[3] == pytest.approx(0.8, abs=0.02)
    assert found[0] + found[1] + found[3] <= 0.8 + 1e-9
    assert found[1] > 0.3, "the quick reader may wait as long as the slow one takes"


@given(
    st.lists(st.tuples(st.floats(0.001, 0.5), st.floats(0.0, 200.0), st.floats(0.1, 9.0)), min_size=1, max_size=6),
    st.data(),
    st.floats(0.01, 5.0),
)
def test_no_way_through_a_graph_is_longer_than_the_sla(
    facts: list[tuple[float, float, float]], data: st.DataObject, slo_s: float
) -> None:
    stages = []
    for at, (service_s, rps, price) in enumerate(facts):
        after = data.draw(st.sets(st.integers(0, at - 1), max_size=2)) if at else set()
        stages.append(StageFacts(name=str(at), after=tuple(sorted(after)), service_s=service_s, rps=rps, price=price))
    found = divided(slo_s, 98.0, stages)
    for way in ways(stages):
        assert sum(found.stages[at].budget_s for at in way) <= slo_s * (1.0 + 1e-9)
    if found.is_feasible:
        for each in found.stages:
            assert each.service_s is not None and each.budget_s >= each.service_s * (1.0 - 1e-9)


@pytest.mark.parametrize(("slo_s", "rps"), [(0.2, 40.0), (0.3, 20.0), (0.5, 60.0), (0.8, 25.0)])
def test_the_price_is_close_to_the_best_division_on_a_grid(slo_s: float, rps: float) -> None:
    services, q = (0.02, 0.06, 0.03), stage_percentile(98.0, 3) / 100.0

    def price(service_s: float, budget_s: float) -> float:
        count = math.floor(rps * service_s) + 1
        while waiting_s(count, rps * service_s / count, service_s, 0.0, q) > budget_s - service_s + 1e-9:
            count += 1
        return count

    slack = slo_s - sum(services)
    best = min(
        sum(price(each, each + part * slack / 20) for each, part in zip(services, (a, b, 20 - a - b), strict=True))
        for a, b in itertools.product(range(21), repeat=2)
        if a + b <= 20
    )
    found = divided(slo_s, 98.0, chain(*services, rps=rps))
    assert sum(each.replicas or math.inf for each in found.stages) <= best + 1


def test_the_late_parts_of_the_stages_add_up_to_that_of_the_whole() -> None:
    assert stage_percentile(98.0, 1) == 98.0
    assert 4 * (100.0 - stage_percentile(96.0, 4)) == pytest.approx(4.0)
