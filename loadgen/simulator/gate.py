"""The simulated gateway: the product's waiting room in virtual time, the channels to the replicas, and a worker's
counters.

There is one worker. A message of a slot channel takes ``message_s`` in either direction; messages of one channel stay
in order.
"""

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tidegate.activator.commands import Activate, Link, Refuse, Send, Unlink
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.activator.variants import VariantChoice
from tidegate.errors import DEADLINE
from tidegate.flow.messages import Hello, ProxyMessage, WorkerMessage
from tidegate.loadgen.simulator.counters import ANSWERED, Counters, Ended, Request
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.records.gateway_sample import Activation, GatewaySample
from tidegate.records.route_table import RouteTable

if TYPE_CHECKING:
    from tidegate.loadgen.simulator.replica import VirtualReplica

WORKER = "g0"
_Sent = tuple[str, int, WorkerMessage]
"""(replica, number of the link, message)"""


class SimulatedGateway:
    """The shell of a gateway worker around its waiting room."""

    __slots__ = (
        "_activate",
        "_caller",
        "_choice",
        "_counters",
        "_deadlines",
        "_idempotent",
        "_is_turning",
        "_kernel",
        "_linked",
        "_message_s",
        "_number",
        "_replicas",
        "_sequence",
        "_table",
        "_timeouts",
        "_turn_s",
        "_variants",
        "_wake",
        "ended",
        "open",
        "room",
        "switched",
    )

    def __init__(
        self,
        *,
        kernel: Kernel,
        rng: random.Random,
        message_s: float,
        turn_s: float,
        timeouts: Mapping[str, float],
        latencies: Mapping[str, float | None],
        idempotent: frozenset[str],
        variants: Mapping[str, tuple[str, tuple[str, ...]]],
        replicas: Mapping[str, "VirtualReplica"],
        activate: Callable[[Activation], None],
        caller: Callable[[Ended], None],
    ) -> None:
        """By revision: ``timeouts`` of a request, and ``latencies``, the SLA's target; ``idempotent``: revisions whose
        requests are retried when a replica breaks; ``variants``: the function, and the revisions of the variants that
        may serve its requests. ``caller`` receives the end of each request that has a caller."""
        self.room = WaitingRoom(rng=rng)
        self.open = 0
        """Requests that have not ended."""
        self.ended: list[Ended] = []
        """Finished requests; the reader takes the list (:meth:`take_ended`)."""
        self.switched: dict[tuple[str, str], int] = {}
        """Requests by the revision that they were for and the one, of another variant, that served them."""
        self._variants = variants
        self._choice = VariantChoice(self.room)
        self._kernel = kernel
        self._message_s = message_s
        self._turn_s = turn_s
        self._is_turning = False
        self._timeouts = timeouts
        self._idempotent = idempotent
        self._replicas = replicas
        self._activate = activate
        self._caller = caller
        self._counters = {revision: Counters(revision, latencies[revision]) for revision in timeouts}
        self._deadlines: dict[int, float] = {}
        """By number of a stage's request that waits: its deadline, which is later than its wait may last."""
        self._linked: dict[str, int] = {}
        """Number of the link to each replica; messages of an older link are dropped."""
        self._number = 0
        self._sequence = 0
        self._table: tuple[int, int] = (0, 0)
        self._wake = float("inf")

    # --- requests ---

    def arrive(self, request: Request, now: float) -> None:
        """Takes a request that arrives now."""
        if self._variants and request[1] in self._variants:
            request = self._served(request, now)
        revision = request[1]
        self.open += 1
        sizes, room = self._counters[revision].sizes, self.room
        sizes[request[3]] = sizes.get(request[3], 0) + 1
        self._enter(room.arrive(request, revision, request[3], now + self._timeouts[revision], now), now)

    def _served(self, request: Request, now: float) -> Request:
        """Returns the request as that of the variant that serves it."""
        own = request[1]
        function, others = self._variants[own]
        if not self._choice.is_needed(own, request[3]):
            return request
        other = self._choice.choose(function, own, others, request[3], now)
        if other is None:
            return request
        self.switched[own, other] = self.switched.get((own, other), 0) + 1
        return (request[0], other, *request[2:])

    def arrive_stage(self, request: Request, waits_until: float, deadline: float, since: float, now: float) -> None:
        """Takes the request of a pipeline's stage: it waits in its place by the age of the whole request."""
        revision = request[1]
        self.open += 1
        sizes, room = self._counters[revision].sizes, self.room
        sizes[request[3]] = sizes.get(request[3], 0) + 1
        if deadline > waits_until:
            self._deadlines[request[0]] = deadline
        self._enter(room.arrive(request, revision, request[3], waits_until, now, since=since), now)

    def _begin(self, bind: Bind, now: float) -> "tuple[VirtualReplica | None, bool]":
        """Sends a request to its replica. Returns the replica, and whether it has begun."""
        if self._deadlines:
            request: Request = bind.request  # type: ignore[assignment]  # what was given to the room
            bind.deadline = self._deadlines.pop(request[0], bind.deadline)  # What runs is not dropped any more.
        replica = self._replicas.get(bind.replica.id)
        return replica, replica is not None and replica.begin(bind, now)

    def _enter(self, bind: Bind | Refuse | None, now: float) -> None:
        """Goes on with the room's answer to an arrival."""
        room = self.room
        if type(bind) is Bind:
            replica, has_begun = self._begin(bind, now)
            if not has_begun:
                self._return(bind, replica, now)
        elif bind is not None:
            self._refused(bind, now)  # type: ignore[arg-type]  # `type() is` narrows nothing
        else:
            when = room.next_wakeup()
            if when is not None and when < self._wake:
                self._arm(now)
        if room.out:
            self._act(now)
        elif room.unsettled and not self._is_turning:
            self._turn(now)

    def _return(self, bind: Bind, replica: "VirtualReplica | None", now: float) -> None:
        """Returns a request to the room: its replica is gone, or did not start it."""
        if replica is None:
            self.room.unsent(bind, now)
        else:
            self.room.refused(bind, now)

    def answered(self, replica: "VirtualReplica", bind: Bind, kept: bool, sent_at: float, now: float) -> None:
        """Takes a replica's answer."""
        request: Request = bind.request  # type: ignore[assignment]  # what was given to the room
        self.open -= 1
        ended: Ended = (request, sent_at, now, replica.accelerator, replica.id, ANSWERED)
        self.ended.append(ended)
        room = self.room
        room.answered(bind, kept, now)
        if room.out:
            self._act(now)
        elif room.unsettled and not self._is_turning:
            self._turn(now)
        if request[4] is not None:
            self._caller(ended)

    def expired(self, replica: "VirtualReplica", bind: Bind, sent_at: float, now: float) -> None:
        """Takes the end of a request whose deadline passed at a replica: a 504."""
        request: Request = bind.request  # type: ignore[assignment]  # as above
        self.room.aborted(bind, now)
        self.open -= 1
        ended: Ended = (request, sent_at, now, replica.accelerator, replica.id, DEADLINE.code)
        self.ended.append(ended)
        self._act(now)
        if request[4] is not None:
            self._caller(ended)

    def broke(self, replica: "VirtualReplica", bind: Bind, now: float) -> None:
        """Takes the loss of a replica with its request. A gateway cannot know whether execution had begun."""
        request: Request = bind.request  # type: ignore[assignment]  # as above
        if request[1] in self._idempotent:
            self.room.broke_off(bind, now)
        else:
            self.room.aborted(bind, now)
            self._over(request, now, replica.accelerator, replica.id, "failed")
        self._act(now)

    def _refused(self, refuse: Refuse, now: float) -> None:
        request: Request = refuse.request  # type: ignore[assignment]  # as above
        self._over(request, now, "", "", refuse.kind.code)

    def _over(self, request: Request, now: float, accelerator: str, replica: str, end: str) -> None:
        self.open -= 1
        ended: Ended = (request, now, now, accelerator, replica, end)
        self.ended.append(ended)
        if request[4] is not None:
            self._deadlines.pop(request[0], None)
            self._caller(ended)

    # --- commands ---

    def _act(self, now: float) -> None:
        """Executes the room's commands."""
        room = self.room
        while room.out:
            commands = room.out[:]
            room.out.clear()
            sent: list[_Sent] = []
            for command in commands:
                if type(command) is Send:
                    link = self._linked.get(command.replica)
                    if link is not None:
                        sent.append((command.replica, link, command.message))
                    continue
                if sent:
                    self._send(sent, now)
                    sent = []
                if type(command) is Bind:
                    replica, has_begun = self._begin(command, now)
                    if not has_begun:
                        self._return(command, replica, now)
                elif type(command) is Activate:
                    self._activate(command.activation)
                elif type(command) is Refuse:
                    self._refused(command, now)
                elif type(command) is Link:
                    self._number += 1
                    self._linked[command.replica] = self._number
                    self._kernel.at(now + self._message_s, self._opens, (command.replica, self._number))
                elif type(command) is Unlink and self._linked.pop(command.replica, None) is not None:
                    self._kernel.at(now + self._message_s, self._closes, command.replica)
            if sent:
                self._send(sent, now)
        if room.unsettled and not self._is_turning:
            self._turn(now)

    def _arm(self, now: float) -> None:
        """Schedules the room's next wake-up."""
        when = self.room.next_wakeup()
        if when is not None and (when < self._wake or self._wake <= now):
            self._wake = when
            self._kernel.at(when, self._woken)

    def _turn(self, now: float) -> None:
        """Starts a loop iteration in which the room was called."""
        self._is_turning = True
        self._kernel.at(now + self._turn_s, self._turned)

    def _turned(self, now: float, _: None) -> None:
        """Ends the loop iteration: wants are sent."""
        self._is_turning = False
        if self.room.unsettled:
            self.room.settle(now)
        self._act(now)
        self._arm(now)

    def _woken(self, now: float, _: None) -> None:
        self._wake = float("inf")
        self.room.on_wakeup(now)
        self._act(now)
        self._arm(now)

    # --- wires ---

    def _opens(self, now: float, link: tuple[str, int]) -> None:
        name, number = link
        replica = self._replicas.get(name)
        if replica is not None and self._linked.get(name) == number:
            self.room.linked(name, now)
            self._act(now)
            replica.opened(Hello(WORKER), now)

    def _closes(self, now: float, name: str) -> None:
        replica = self._replicas.get(name)
        if replica is not None and name not in self._linked:
            replica.closed(now)

    def _send(self, sent: list[_Sent], now: float) -> None:
        """Sends messages that follow each other: they arrive at one moment, in their order."""
        self._kernel.at(now + self._message_s, self._up, sent)

    def _up(self, now: float, sent: list[_Sent]) -> None:
        replicas, linked = self._replicas, self._linked
        for name, number, message in sent:
            replica = replicas.get(name)
            if replica is not None and linked.get(name) == number:
                replica.heard(message, now)

    def on_message(self, replica: "VirtualReplica", message: ProxyMessage) -> None:
        """Takes a replica's message on its channel."""
        link = self._linked.get(replica.id)
        if link is not None:
            self._kernel.at(self._kernel.now() + self._message_s, self._down, (replica.id, link, message))

    def _down(self, now: float, sent: tuple[str, int, ProxyMessage]) -> None:
        name, number, message = sent
        if self._linked.get(name) == number and name in self._replicas:
            self.room.heard(name, message, now)
            self._act(now)

    def lost(self, name: str, now: float) -> None:
        """Takes the final loss of a replica's channel."""
        if self._linked.pop(name, None) is not None:
            self.room.unlinked(name, now)
            self._act(now)

    def apply(self, table: RouteTable, now: float) -> None:
        """Works by this route table from now on."""
        self._table = table.version
        self.room.apply(table, now)
        self._act(now)

    # --- figures ---

    def take_ended(self) -> list[Ended]:
        """Returns the requests that ended since the last call, in order, and counts them."""
        taken, self.ended = self.ended, []
        if len(self._counters) == 1:
            for counters in self._counters.values():
                counters.add(taken)
            return taken
        parted: dict[str, list[Ended]] = {}
        for each in taken:
            parted.setdefault(each[0][1], []).append(each)
        for revision, part in parted.items():
            self._counters[revision].add(part)
        return taken

    def sample(self, now: float) -> GatewaySample:
        """Returns the worker's answer to ``GET /sample``; call :meth:`take_ended` first."""
        self._sequence += 1
        demands = (counters.demand(self.room.counts(name, now)) for name, counters in self._counters.items())
        return GatewaySample(
            worker=WORKER,
            incarnation="simulated",
            sequence=self._sequence,
            uptime_s=now,
            table_epoch=self._table[0],
            table_number=self._table[1],
            connections=0,
            demands=tuple(each for each in demands if each is not None),
        )

    def __repr__(self) -> str:
        return f"<Gate {self.open} requests open, {self.room!r}>"
