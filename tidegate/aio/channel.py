"""asyncio drivers of the slot channel: :class:`SlotPort` in a queue_proxy, :class:`ChannelClient` in a gateway."""

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

from tidegate.flow.messages import ProxyMessage, WorkerMessage
from tidegate.flow.slots import SlotLedger, Visit
from tidegate.replica import ReplicaState


class SlotPort:
    """Hosts a SlotLedger on a loop: its channels, its messages, its timer.

    Call the ledger directly; afterwards, when ``ledger.out`` is not empty, ``pump()``. ``pump`` also re-arms the timer.
    """

    def __init__(
        self,
        ledger: SlotLedger,
        loop: asyncio.AbstractEventLoop,
        *,
        admit: Callable[[Visit], None],
        state: Callable[[ReplicaState], None],
    ) -> None:
        self.ledger = ledger

    def protocol(self) -> asyncio.Protocol:
        """The factory for ``ex.upgrade`` on ``tidegate.headers.SLOT_CHANNEL_PATH`` once the token was checked."""
        return asyncio.Protocol()

    def pump(self) -> None:
        """Carries out ``ledger.out``: messages leave at the end of this loop turn, admits and states at once."""

    def close(self) -> None:
        """Closes all channels and the timer."""


class ChannelHandler(Protocol):
    """What a ChannelClient tells its host; all in the loop's thread, none may raise."""

    def linked(self, replica: str) -> None: ...
    def heard(self, replica: str, message: ProxyMessage) -> None: ...
    def unlinked(self, replica: str) -> None: ...


class ChannelClient:
    """One worker's channel to one replica, reconnecting with back-off until ``close()``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        replica: str,
        address: str,
        worker: str,
        token: str,
        handler: ChannelHandler,
        rng: random.Random,
    ) -> None:
        self.replica = replica

    def send(self, message: WorkerMessage) -> None:
        """Queues a message for the end of this loop turn; dropped while the channel is not open."""

    def close(self) -> None:
        """Closes the channel for good; the handler hears nothing any more."""
