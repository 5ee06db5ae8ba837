"""The place of an idle replica goes to a function that has none: which one, to which function, and when it stays."""

from typing import Any

from msgspec.structs import replace

from tests.support.worlds.autoscaling import group, observation
from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.places import Places, Standing, without_given_up
from tidegate.autoscaler.measure.observation import FleetGroup, GivenUp

FULL = FleetGroup(accelerator="cpu", room=0)


def idle(name: str, idle_s: float = 10.0, keeps: int = 0, **values: Any) -> Standing:
    seen = observation(group(ready=1), **values)
    return Standing(name, seen, idle_s, keeps, waiting=0, is_first_start=False)


def asking(name: str, waiting: int = 1, **values: Any) -> Standing:
    seen = observation(group(room=0), waiting=waiting, **values)
    return Standing(name, seen, 0.0, 0, waiting=waiting, is_first_start=not waiting)


def busy(name: str) -> Standing:
    return Standing(
        name, observation(group(ready=1), concurrency=1.0), 0.0, 0, waiting=0, is_first_start=False, is_used=True
    )


class World:
    """Revisions ``NAME-1`` on one accelerator kind; those that do not ask have a replica."""

    def __init__(self, *standings: Standing, room: int = 0) -> None:
        self.places = Places()
        self.fleets: dict[str, tuple[FleetGroup, ...]] = {}
        for each in standings:
            name = f"{each.function}-1"
            ready = () if each.is_asking else (name,)
            self.fleets[name] = (FleetGroup(accelerator="cpu", ready=ready, room=room),)
            self.places.note(name, each)

    def given(self) -> dict[str, str]:
        """Functions that give up a replica, with the one that gets its place."""
        self.places.match(self.fleets, 0.0)
        found = {name: self.places.given_up(name) for name in self.fleets}
        return {name[:-2]: each.function for name, each in found.items() if each is not None}

    def sees(self, function: str) -> int | None:
        """Free places as the function's decision sees them."""
        name = f"{function}-1"
        return self.places.reserved(name, self.fleets[name])[0].room


def test_a_waiting_request_takes_the_place_of_a_function_that_was_never_used_then_of_the_least_recently_used() -> None:
    world = World(busy("a"), idle("a", 90.0), idle("b", 5.0), asking("c"))
    assert world.given() == {"b": "c"}, "a was used"
    for name, idle_s in (("a", 5.0), ("b", 90.0)):
        world.places.note(f"{name}-1", busy(name))
        world.places.note(f"{name}-1", idle(name, idle_s))
    assert world.given() == {"b": "c"}, "of two that were used, the one that is idle for longer"
    assert world.places.coming("c-1") == "b gives up an idle replica on cpu"
    given = world.places.given_up("b-1")
    assert given is not None and given.why == "1 waiting; last used 90 s ago"


def test_minimum_work_starts_and_missing_data_keep_a_replica() -> None:
    starting = Standing("s", observation(group(starting=1)), 90.0, 0, waiting=0, is_first_start=False)
    kept = (idle("m", keeps=1), busy("b"), idle("p", 1.9), idle("d", complete=False), starting)
    world = World(*kept, asking("c"))
    assert world.given() == {}
    assert world.places.coming("c-1") == "p gives up a replica when it has been idle for 2 s"
    assert [(each.function, each.why) for each in world.places.holders("c-1", world.fleets)] == [
        ("b", "busy, kept until 2 s after its last request"),
        ("d", "kept until its measurements are complete"),
        ("m", "kept as long as its minimum scale is 1"),
        ("p", "idle, kept for 0.1 s more"),
        ("s", "starting, kept until it is ready and idle for 2 s"),
    ]


def test_a_free_place_is_reserved_for_the_claim_and_nothing_is_given_up() -> None:
    world = World(idle("a"), busy("b"), asking("c"), room=1)
    assert world.given() == {}
    assert world.places.reserved("b-1", world.fleets["b-1"])[0].room == 0, "a busy function does not grow into it"
    assert world.places.reserved("c-1", world.fleets["c-1"])[0].room == 1


def test_a_place_that_is_being_freed_is_waited_for() -> None:
    world = World(idle("a"), idle("b"), asking("c"))
    world.fleets["a-1"] = (FleetGroup(accelerator="cpu", draining=1, room=0),)
    assert world.given() == {}
    assert world.places.coming("c-1") == "a replica on cpu is ending"


def test_claims_with_requests_come_before_first_starts_and_each_gets_a_place_of_its_own() -> None:
    world = World(idle("a", 20.0), idle("b", 10.0), asking("n", waiting=0), asking("w", oldest_waiting_s=1.0))
    assert world.given() == {"a": "w", "b": "n"}
    one = World(idle("a"), asking("n", waiting=0), asking("w"), asking("x", oldest_waiting_s=3.0))
    assert one.given() == {"a": "x"}, "the one that waits longest"


def test_a_function_with_a_replica_claims_nothing() -> None:
    world = World(idle("a"), busy("c"))
    world.places.note("c-2", asking("c"))
    world.fleets["c-2"] = (FULL,)
    assert world.given() == {}


def test_only_an_accelerator_that_the_function_may_use_is_given_up() -> None:
    world = World(idle("a"), asking("c"))
    world.fleets["c-1"] = (FleetGroup(accelerator="t4", room=0),)
    assert world.given() == {}


def test_an_activation_is_matched_at_once_and_only_while_there_is_something_to_give() -> None:
    world = World(idle("a"))
    world.places.match(world.fleets, 0.0)
    world.places.note("c-1", asking("c"))
    world.fleets["c-1"] = (FULL,)
    assert world.places.claim(world.fleets, "c-1", 0.0)
    assert not world.places.claim(world.fleets, "c-1", 0.0), "it is known"
    world.places.note("d-1", asking("d"))
    world.fleets["d-1"] = (FULL,)
    assert not world.places.claim(world.fleets, "d-1", 0.0), "nothing is left"


def test_a_decision_keeps_the_other_replicas() -> None:
    seen = observation(group("cpu", ready=2), group("t4", ready=1))
    given = GivenUp(accelerator="cpu", function="c", revision="c-1", why="1 waiting; never used")
    groups, reasons = without_given_up((row("cpu", 2), row("t4", 1)), seen, given)
    assert groups == (row("cpu", 1), row("t4", 1))
    assert [(each.code, each.detail) for each in reasons] == [("place_given_up", "to c: 1 waiting; never used")]


def test_one_replica_is_given_up_until_its_place_is_free() -> None:
    world = World(idle("a", 20.0), idle("b", 10.0), asking("c"))
    assert world.given() == {"a": "c"}
    world.fleets["a-1"] = (FULL,)
    world.places.match(world.fleets, 3.0)
    assert world.places.given_up("b-1") is None, "the processes of a still end"
    assert world.places.coming("c-1") == "a gives up an idle replica on cpu"
    world.places.match(world.fleets, 11.0)
    assert world.places.given_up("b-1") is not None, "the place did not come"


def test_a_place_is_for_the_claim_that_it_was_freed_for_and_the_next_one_gets_another_idle_one() -> None:
    world = World(idle("a", 20.0), idle("b", 10.0), asking("z"))
    assert world.given() == {"a": "z"}
    world.places.note("a-1", asking("a"))  # its replica has just ended, and a request comes
    world.fleets = {name: (replace(groups[0], room=1),) for name, groups in world.fleets.items()}
    world.fleets["a-1"] = (FleetGroup(accelerator="cpu", room=1),)
    world.places.match(world.fleets, 1.0)
    assert world.sees("z") == 1
    assert world.sees("a") == 0
    given = world.places.given_up("b-1")
    assert given is not None and given.function == "a"
    assert world.places.coming("a-1") == "b gives up an idle replica on cpu"


def test_a_place_that_is_to_become_free_for_one_claim_takes_no_free_one_from_another() -> None:
    world = World(asking("a"), asking("b"), room=1)
    world.fleets["c-1"] = (FleetGroup(accelerator="cpu", draining=1, room=1),)
    assert world.given() == {}
    assert world.sees("a") == 1
    assert world.sees("b") == 0
    assert world.places.coming("b-1") == "a replica on cpu is ending"


def test_a_first_start_that_no_request_waits_for_is_waited_for() -> None:
    starting = Standing("a", observation(group(starting=1)), 0.0, 0, waiting=0, is_first_start=False)
    world = World(starting, asking("b", waiting=0), asking("c", waiting=0))
    assert world.given() == {}
    assert world.places.coming("b-1") == "a gives up a replica when it has been idle for 2 s"
    assert world.places.coming("c-1") is None, "one place for one claim"


def oriented(name: str, ready: int = 2, keeps: int = 0, **values: Any) -> Standing:
    """A throughput-oriented function at work."""
    seen = observation(group(ready=ready), concurrency=float(ready), **values)
    return Standing(name, seen, 0.0, keeps, waiting=5, is_first_start=False, is_used=True, is_oriented=True)


class OrientedWorld(World):
    """Revisions that ask may have replicas."""

    def __init__(self, *standings: Standing) -> None:
        super().__init__(*standings)
        for each in standings:
            ready = tuple(f"{each.function}-{index}" for index in range(each.observation.ready))
            self.fleets[f"{each.function}-1"] = (FleetGroup(accelerator="cpu", ready=ready, room=0),)


def test_requests_of_a_latency_critical_function_take_a_busy_replica_of_a_throughput_oriented_one() -> None:
    world = OrientedWorld(oriented("bulk", 2), oriented("large", 3), busy("b"), asking("c"))
    assert world.given() == {"large": "c"}, "the largest gives way, and a busy latency-critical one never"
    assert world.places.coming("c-1") == "large gives up a replica on cpu"
    given = world.places.given_up("large-1")
    assert given is not None and given.why == "1 waiting; throughput-oriented"


def test_a_throughput_oriented_function_keeps_its_last_replica_its_minimum_and_what_is_not_measured() -> None:
    world = OrientedWorld(
        oriented("last", 1), oriented("kept", 2, keeps=2), oriented("dark", 2, complete=False), asking("c")
    )
    assert world.given() == {}


def test_neither_a_first_start_nor_a_throughput_oriented_function_takes_a_busy_replica() -> None:
    assert OrientedWorld(oriented("bulk"), asking("new", waiting=0)).given() == {}
    asks = asking("other")._replace(is_oriented=True)
    assert OrientedWorld(oriented("bulk"), asks).given() == {}


def test_an_idle_replica_goes_before_a_busy_one_and_a_throughput_oriented_one_before_others() -> None:
    resting = idle("rest", 5.0)._replace(is_oriented=True, is_used=True)
    world = OrientedWorld(oriented("bulk"), resting, idle("older", 90.0)._replace(is_used=True), asking("c"))
    assert world.given() == {"rest": "c"}


def test_a_latency_critical_claim_comes_before_one_that_waits_for_longer() -> None:
    waits = asking("batch")
    waits = waits._replace(observation=observation(group(room=0), waiting=1, oldest_waiting_s=60.0), is_oriented=True)
    world = World(idle("a"), waits, asking("chat"))
    assert world.given() == {"a": "chat"}


def short(name: str, **values: Any) -> Standing:
    """A latency-critical function at work that its policy wants to be larger."""
    return busy(name)._replace(observation=observation(group(ready=1), concurrency=9.0, **values), is_short=True)


def test_a_latency_critical_function_that_is_short_takes_one_replica_of_a_throughput_oriented_one() -> None:
    world = OrientedWorld(oriented("bulk", 3), busy("b"), short("c"))
    assert world.given() == {"bulk": "c"}
    given = world.places.given_up("bulk-1")
    assert given is not None and given.why == "it needs a further replica; throughput-oriented"
    assert world.places.coming("c-1") == "bulk gives up a replica on cpu"


def test_one_that_is_short_gets_no_place_of_others_and_waits_behind_every_other_claim() -> None:
    assert OrientedWorld(oriented("last", 1), busy("b"), idle("i"), short("c")).given() == {}
    assert OrientedWorld(oriented("bulk"), short("c"), asking("new")).given() == {"bulk": "new"}
    assert OrientedWorld(oriented("bulk"), short("o")._replace(is_oriented=True)).given() == {}
    assert OrientedWorld(oriented("bulk"), short("dark", complete=False)).given() == {}


def test_the_next_place_is_taken_when_the_last_one_has_come() -> None:
    world = OrientedWorld(oriented("bulk", 3), short("c"))
    assert world.given() == {"bulk": "c"}
    world.fleets["bulk-1"] = (FleetGroup(accelerator="cpu", ready=("bulk-0", "bulk-1"), draining=1, room=0),)
    assert world.given() == {}, "it ends"
    world.fleets["bulk-1"] = (FleetGroup(accelerator="cpu", ready=("bulk-0", "bulk-1"), room=1),)
    world.fleets["c-1"] = (FleetGroup(accelerator="cpu", ready=("c-0",), room=1),)
    assert world.given() == {}
    assert world.places.reserved("bulk-1", world.fleets["bulk-1"])[0].room == 0, "it does not grow back into it"
    assert world.places.reserved("c-1", world.fleets["c-1"])[0].room == 1


def test_the_place_goes_back_when_it_is_short_no_more() -> None:
    world = OrientedWorld(oriented("bulk", 2), short("c"))
    world.places.note("c-1", busy("c"))
    world.fleets["bulk-1"] = (FleetGroup(accelerator="cpu", ready=("bulk-0",), room=1),)
    assert world.given() == {}
    assert world.places.reserved("bulk-1", world.fleets["bulk-1"])[0].room == 1


def test_a_further_replica_is_claimed_on_an_accelerator_whose_rate_is_known() -> None:
    world = OrientedWorld(oriented("bulk", 3), short("c"))
    seen = observation(group("t4"), group("cpu", ready=1, mu_ips=18.0), concurrency=9.0)
    world.places.note("c-1", short("c")._replace(observation=seen))
    world.fleets["bulk-1"] = tuple(
        FleetGroup(accelerator=kind, ready=(f"{kind}-0", f"{kind}-1"), room=0) for kind in ("t4", "cpu")
    )
    world.fleets["c-1"] = (FleetGroup(accelerator="t4", room=0), FleetGroup(accelerator="cpu", ready=("c-0",), room=0))
    assert world.given() == {"bulk": "c"}
    given = world.places.given_up("bulk-1")
    assert given is not None and given.accelerator == "cpu"


def test_one_that_tries_a_kind_of_unknown_rate_claims_it_where_no_known_one_becomes_free() -> None:
    seen = observation(group("t4"), group("cpu", ready=1, mu_ips=18.0), concurrency=9.0)
    for kinds, taken in ((("t4", "cpu"), "cpu"), (("t4",), "t4")):
        world = OrientedWorld(oriented("bulk", 3), short("c"))
        world.places.note("c-1", short("c")._replace(observation=seen, tries_unknown=True))
        world.fleets["bulk-1"] = tuple(
            FleetGroup(accelerator=kind, ready=(f"{kind}-0", f"{kind}-1"), room=0) for kind in kinds
        )
        world.fleets["c-1"] = (
            FleetGroup(accelerator="t4", room=0),
            FleetGroup(accelerator="cpu", ready=("c-0",), room=0),
        )
        assert world.given() == {"bulk": "c"}
        given = world.places.given_up("bulk-1")
        assert given is not None and given.accelerator == taken
