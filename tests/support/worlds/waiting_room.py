"""A waiting room and its host, for tests that read like a conversation."""

import random
import re

from tests.support.worlds.routes import table
from tidegate.activator.commands import Activate, Crowd, Link, Refuse, Send, Unlink
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.messages import Grant, ProxyMessage, State, Welcome, encode_message
from tidegate.flow.rooms.figures import Board
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RouteTable

F = "f-00001"
"""The revision of the function ``f``."""


class Lobby:
    """A room and its host; reads like a conversation."""

    def __init__(self, routes: RouteTable, worker_index: int = 0, board: Board | None = None) -> None:
        self.room = WaitingRoom(rng=random.Random(1), worker_index=worker_index, board=board)
        self.room.apply(routes, 0.0)
        self.binds: dict[str, Bind] = {}

    def did(self, now: float = 0.0) -> list[str]:
        """Returns what the room did since the last call, the end of the loop turn included."""
        if self.room.unsettled:
            self.room.settle(now)
        commands = self.room.out[:]
        self.room.out.clear()
        lines = []
        for command in commands:
            match command:
                case Bind():
                    lines.append(self._bound(command))
                case Refuse():
                    lines.append(f"refuse {command.request}: {command.kind.code}")
                case Send():
                    lines.append(f"{command.replica} < {encode_message(command.message).decode().strip()}")
                case Link():
                    lines.append(f"link {command.replica}")
                case Unlink():
                    lines.append(f"unlink {command.replica}")
                case Activate():
                    lines.append(f"activate {command.activation.revision} for {command.activation.waiting}")
                case Crowd():
                    lines.append(f"crowd at {command.activation.revision} of {command.activation.waiting}")
        return lines

    def _bound(self, bind: Bind) -> str:
        assert isinstance(bind.request, str)
        self.binds[bind.request] = bind
        want = re.search(rb"tidegate-want: (\S+ \S+)", bind.header())
        tail = f", want {want[1].decode()}" if want else ""
        return f"{bind.request} -> {bind.replica.id} on {bind.credit}{tail}"

    def arrive(
        self,
        request: str,
        now: float = 0.0,
        *,
        inferences: int = 1,
        deadline: float = 1e9,
        revision: str = F,
        size: int = 0,
        priority: int = 0,
        key: Affinity | None = None,
        pinned: bool = False,
        avoid: str | None = None,
        claim: TenantCharge | None = None,
    ) -> str:
        outcome = self.room.arrive(
            request, revision, inferences, deadline, now, size, priority, key, pinned, avoid, claim
        )
        if isinstance(outcome, Bind):
            return self._bound(outcome)
        if isinstance(outcome, Refuse):
            return f"refuse {outcome.request}: {outcome.kind.code}"
        return "waits"

    def hear(self, replica: str, *messages: ProxyMessage, now: float = 0.0) -> list[str]:
        for message in messages:
            self.room.heard(replica, message, now)
        return self.did(now)

    def ready(
        self,
        replica: str,
        *credits: int,  # noqa: A002
        limit: int = 4,
        now: float = 0.0,
        state: ReplicaState = ReplicaState.READY,
        units: int = 1,
    ) -> list[str]:
        """Its channel opens, it is ready, and it has granted these credits."""
        self.room.linked(replica, now)
        said: list[ProxyMessage] = [Welcome("i1", limit, ConcurrencyUnit.REQUESTS), State(state)]
        if credits:
            said.append(Grant(tuple((number, units) for number in credits)))
        return self.hear(replica, *said, now=now)

    def answer(self, request: str, now: float = 0.0, *, keep: bool = True) -> list[str]:
        self.room.answered(self.binds[request], keep, now)
        return self.did(now)

    def wake(self, now: float) -> list[str]:
        self.room.on_wakeup(now)
        return self.did(now)


def lobby(*replicas: str, **settings: object) -> Lobby:
    """One function ``f`` with these replicas in one group, linked; they have not reported their state yet."""
    one = Lobby(table([(replica, "cpu") for replica in replicas], **settings))  # type: ignore[arg-type]  # passed on
    one.arrive("first")
    one.room.withdraw("first", 0.0)
    one.did()
    return one
