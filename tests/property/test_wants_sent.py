"""The wants sent to each replica, after any history: a room that skips a settling must not be wrong."""

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.worlds.waiting_room import Lobby, lobby
from tidegate.flow.messages import Grant, State, Void
from tidegate.flow.wants import want_class
from tidegate.records.replica_state import ReplicaState

RARE = ("leave", "refuse", "break off", "void", "eject", "admit", "drain", "revive", "grant")
STEPS = st.lists(
    st.tuples(st.sampled_from((*RARE, *["arrive"] * 12, *["answer"] * 6)), st.integers(0, 50)), min_size=20
)


class RandomRoom:
    """A room of some replicas with one credit each, and what runs and waits there."""

    def __init__(self, replicas: int) -> None:
        self.names = [f"r{number}" for number in range(replicas)]
        self.lobby: Lobby = lobby(*self.names)
        for number, name in enumerate(self.names):
            self.lobby.ready(name, number + 1)
        self.credit = replicas
        self.came = 0
        self.now = 1.0

    def step(self, what: str, number: int) -> None:
        self.now += 0.01
        room, name = self.lobby.room, self.names[number % len(self.names)]
        running = sorted(self.lobby.binds)
        if what == "arrive":
            self.came += 1
            self.lobby.arrive(f"q{self.came}", self.now, priority=3 if number < 5 else 5)
        elif what == "leave":
            room.withdraw(f"q{number}", self.now)
        elif what in ("answer", "refuse", "break off") and running:
            bind = self.lobby.binds.pop(running[number % len(running)])
            act = {"refuse": room.refused, "break off": room.broke_off}.get(what)
            if act is None:
                room.answered(bind, True, self.now)
            else:
                act(bind, self.now)
        elif what == "void":
            room.heard(name, Void((number + 1,)), self.now)
        elif what == "eject":
            room.eject(name, self.now, self.now + 1.0)
        elif what == "admit":
            room.readmit(name, self.now)
        elif what in ("drain", "revive"):
            state = ReplicaState.DRAINING if what == "drain" else ReplicaState.READY
            room.heard(name, State(state), self.now)
        elif what == "grant":
            self.credit += 1
            room.heard(name, Grant(((self.credit, 1),)), self.now)
        self.lobby.did(self.now)


@given(st.integers(1, 3), STEPS)
@example(3, [("arrive", 0), ("refuse", 0), ("break off", 0), ("refuse", 0)])  # Two lanes, and one gets new wants.
def test_every_replica_knows_the_class_of_what_waits(replicas: int, steps: list[tuple[str, int]]) -> None:
    one = RandomRoom(replicas)
    for what, number in steps:
        one.step(what, number)
        for replica in one.lobby.room._fleet.replicas.values():
            amount, head = replica.level()
            assert replica.sent_class == want_class(amount), f"{replica} knows {replica.sent_class} of {amount}"
            assert head is None or replica.sent_kind[0] == head.key[0]
