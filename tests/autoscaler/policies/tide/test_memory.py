"""What tide has learnt: all of it comes back, in bounded size."""

import random
import sys
from typing import Any

from tests.autoscaler.policies.tide.test_policy import World
from tests.support.worlds.autoscaling import T0, revision
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.policies.tide.calendar import SAMPLES
from tidegate.autoscaler.policies.tide.outlook import MOST_CELLS
from tidegate.autoscaler.profiles.memory import packed, unpacked
from tidegate.function import Scaling, Sla

TIDE = revision(sla=Sla(latency_s=0.3, percentile=99.0), scaling=Scaling(policy="tide"))


def decider_of(world: World) -> Decider:
    decider = Decider()
    decider.apply(TIDE, T0)
    decider._states[TIDE.id].policy = world.policy
    return decider


def learnt(decider: Decider) -> dict[str, Any]:
    plain = decider.memory(TIDE.id)
    assert isinstance(plain, dict)
    found: dict[str, Any] = plain["TideMemory"]
    return found


def test_a_policy_that_resumes_expects_what_the_first_one_did() -> None:
    world = World(ready={"cpu": 8})
    world.run(60.0, 900)
    old, new = decider_of(world), Decider()
    new.apply(TIDE, T0)
    new.resume(TIDE.id, old.memory(TIDE.id), 0.0)
    known, found = (learnt(each) for each in (old, new))
    assert {name for name in known if found[name] != known[name]} <= {"outlook", "silence"}
    differ = {name for name, value in known["outlook"]["Outlook"].items() if found["outlook"]["Outlook"][name] != value}
    assert differ == {"_past"}, "the last seconds: what comes next did not follow on them"
    later = World(ready={"cpu": 8}, seed=2)
    later.policy = new._states[TIDE.id].policy  # type: ignore[assignment]
    later.second = world.second
    assert set(later.run(60.0, 60)) <= {8, 9}


def test_no_load_makes_it_grow_beyond_a_byte_on_disk_and_two_in_the_process_for_each_second_of_seven_days() -> None:
    """Every change from every level, and a calendar without any pattern."""
    world, rng = World(ready={"cpu": 8}), random.Random(1)
    world.run(60.0, 700)
    outlook = world.policy._outlook
    for position in range(outlook._calendar.position + 1, outlook._calendar.position + SAMPLES + 1):
        outlook._calendar.write(position, rng.randrange(1, 256), rng.randrange(1, 256))
    outlook._rows = {row: {change: 1000.0 * rng.random() for change in range(1, 256)} for row in range(1, 256)}
    heaviest = sorted((weight for counts in outlook._rows.values() for weight in counts.values()), reverse=True)
    outlook._seconds = 7 * 86_400 - 1
    world.run(60.0, 1)
    kept = [weight for counts in outlook._rows.values() for weight in counts.values()]
    assert len(kept) == MOST_CELLS
    assert min(kept) >= heaviest[MOST_CELLS]
    assert len(packed(TIDE.function, decider_of(world).memory(TIDE.id), T0).state) < 7 * 86_400
    in_process = sum(sys.getsizeof(counts) + 24 * len(counts) for counts in outlook._rows.values())
    assert in_process + len(outlook._calendar._changes) + len(outlook._calendar._rows) < 2 * 7 * 86_400


def test_seven_days_take_less_than_half_a_mebibyte() -> None:
    world, rng = World(ready={"cpu": 8}), random.Random(1)
    world.run(60.0, 700)
    calendar = world.policy._outlook._calendar
    for position in range(calendar.position + 1, calendar.position + SAMPLES + 1):
        calendar.write(position, rng.randrange(90, 160), rng.randrange(20, 60))
    state = decider_of(world).memory(TIDE.id)
    memory = packed(TIDE.function, state, T0)
    assert len(memory.state) < 2**19
    assert unpacked(memory, TIDE.function) == state
