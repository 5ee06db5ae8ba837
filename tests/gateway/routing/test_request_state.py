"""The phases of a request: the table is complete, its rows exclude each other, and the chain never leaves it."""

import itertools
import random
from typing import Any, cast

import pytest

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import LEGAL, Phase, RequestState
from tidegate.records.route_table import Hedging, ReplicaRoute

THREE = ReplicaRoute(id="f-00001-ccccc", address="10.0.0.3:1")
SOMETHING: Any = object()


def fresh() -> RequestState:
    return RequestState(Target(Call.WORK, None), b"id", b"")


def with_fields(fields: tuple[bool, ...]) -> RequestState:
    bind, hedge, hedge_of, primary_failed, exchange, is_ended = fields
    state = fresh()
    state.bind = SOMETHING if bind else None
    state.hedge = SOMETHING if hedge else None
    state.hedge_of = SOMETHING if hedge_of else None
    state.exchange = SOMETHING if exchange else None
    state.primary_failed, state.is_ended = primary_failed, is_ended
    return state


# --- the table ------------------------------------------------------------------------------------------------------


def test_each_phase_has_a_row_and_no_two_rows_share_a_combination() -> None:
    assert set(LEGAL) == set(Phase)
    for fields in itertools.product((False, True), repeat=6):
        rows = [
            phase
            for phase, row in LEGAL.items()
            if all(wanted is None or wanted is found for wanted, found in zip(row, fields, strict=True))
        ]
        assert len(rows) <= 1, f"{fields} belongs to {rows}"


@pytest.mark.parametrize("fields", list(itertools.product((False, True), repeat=6)))
def test_a_combination_is_a_phase_of_the_table_or_an_error(fields: tuple[bool, ...]) -> None:
    state = with_fields(fields)
    rows = [
        phase
        for phase, row in LEGAL.items()
        if all(wanted is None or wanted is found for wanted, found in zip(row, fields, strict=True))
    ]
    if rows:
        assert [state.phase] == rows
    else:
        with pytest.raises(ValueError, match="no phase of a request has"):
            state.phase  # noqa: B018 - it raises


def test_of_64_combinations_13_are_legal() -> None:
    legal = 0
    for fields in itertools.product((False, True), repeat=6):
        try:
            legal += with_fields(fields).phase is not None
        except ValueError:
            continue
    assert legal == sum(2 ** row.count(None) for row in LEGAL.values()) == 13


# --- the steps ------------------------------------------------------------------------------------------------------


def test_from_the_room_to_a_replica_and_to_the_end() -> None:
    state = fresh()
    assert state.phase is Phase.WAITING
    state.bound(SOMETHING, 1.0)
    assert (state.phase, state.bound_at) == (Phase.BOUND, 1.0)
    state.unbind()
    assert state.phase is Phase.WAITING
    state.bound(SOMETHING, 2.0)
    assert state.ended() is SOMETHING
    assert (state.phase, state.bind) == (Phase.ENDED, None)


def test_a_hedge_that_wins_takes_over_what_is_counted_and_reserved() -> None:
    primary = fresh()
    primary.bound(SOMETHING, 1.0)
    primary.follow(SOMETHING)
    assert primary.phase is Phase.FOLLOWED
    primary.counters, primary.tokens, primary.held = SOMETHING, SOMETHING, SOMETHING
    hedge = primary.hedged(SOMETHING)
    assert (primary.phase, hedge.phase, hedge.is_uncounted) == (Phase.HEDGED, Phase.HEDGE_WAITING, True)
    hedge.bound(SOMETHING, 1.1)
    assert hedge.phase is Phase.HEDGE_BOUND
    hedge.win(primary)
    assert (hedge.phase, hedge.is_uncounted, hedge.counters) == (Phase.BOUND, False, SOMETHING)
    assert (primary.is_uncounted, primary.counters, primary.tokens, primary.held) == (True, None, None, None)


def test_a_primary_whose_replica_failed_depends_on_its_hedge() -> None:
    primary = fresh()
    primary.bound(SOMETHING, 1.0)
    primary.follow(SOMETHING)
    primary.hedged(SOMETHING)
    primary.strand()
    assert primary.phase is Phase.PRIMARY_FAILED
    assert primary.hedge_lost(), "it has failed as well"


def test_a_primary_that_waits_again_while_its_hedge_runs_does_not_depend_on_it() -> None:
    primary = fresh()
    primary.bound(SOMETHING, 1.0)
    primary.follow(SOMETHING)
    primary.hedged(SOMETHING)
    primary.unbind()
    assert primary.phase is Phase.HEDGE_RUNS
    assert not primary.hedge_lost(), "it waits for a replica of its own"


def test_only_a_followed_request_gets_a_second_copy() -> None:
    with pytest.raises(ValueError, match="followed"):
        fresh().hedged(SOMETHING)


def test_a_replica_that_may_have_run_it_is_remembered() -> None:
    state = fresh()
    assert not state.replica_failed(may_have_run=False)
    assert (state.replica_failed(may_have_run=True), state.replica_failed(may_have_run=False)) == (False, True)
    assert state.may_have_run


# --- in the chain ---------------------------------------------------------------------------------------------------


def random_walk(rng: random.Random, steps: int) -> set[Phase]:
    """Plays random events on a chain that hedges and retries. Returns the phases that were seen; none was illegal."""
    hedging = Hedging(percentile=None, after_s=0.05)
    door = Door(table(1, ONE, TWO, THREE, idempotent=True, hedging=hedging, retry_percent=100.0, queue_requests=100))
    door.arrive().client_leaves(door.now)
    for replica in (ONE, TWO, THREE):
        door.ready(replica, 1, 2)
    known: list[FakeExchange] = []
    seen: set[Phase] = set()
    for step in range(steps):
        door.now += rng.choice((0.0, 0.01, 0.06))
        door.core.on_hedges_due()
        if rng.random() < 0.4:
            door.grant(rng.choice((ONE, TWO, THREE)), 3 + step)
        running = [ex for ex in known if not ex.ended]
        bound = [ex for ex in running if ex.context.bind is not None and not ex.context.is_answered]
        event = rng.randrange(8)
        if event <= 1:
            known.append(door.arrive())
        elif event == 2 and running:
            rng.choice(running).expires(door.now)
        elif event == 3 and running:
            rng.choice(running).client_leaves(door.now)
        elif event == 4 and bound:
            rng.choice(bound).breaks_off(door.now, sent=rng.random() < 0.5)
        elif event == 5 and (answered := [ex for ex in running if ex.context.is_answered]):
            rng.choice(answered).ends(door.now, truncated=rng.random() < 0.3)
        elif event >= 5 and bound:
            answers = ((200, "tidegate-credit: keep"), (502, "tidegate-outcome: started"))
            status, field = rng.choice((*answers, (409, "tidegate-outcome: not-started")))
            rng.choice(bound).gets_answer(door.now, status, field, ends=rng.random() < 0.7)
        if rng.random() < 0.1:
            door.core.unlinked(TWO.id)
            door.ready(TWO, 1000 + step)
        door.core.settle()
        twins = [twin for ex in known if (twin := getattr(ex, "twin", None)) is not None and twin not in known]
        known += [twin for twin in twins if twin.context is not None]
        seen |= {cast("RequestState", ex.context).phase for ex in known}
    return seen


def test_whatever_happens_every_request_is_in_a_phase() -> None:
    seen: set[Phase] = set()
    for seed in range(20):
        seen |= random_walk(random.Random(seed), 150)
    assert seen == set(Phase) - {Phase.HEDGE_WAITING}, "a hedge that has no replica lasts for one call"
