"""SlotChannels: the slot channels of one gateway worker, one for each replica that the waiting room has linked."""

import asyncio
import random

from tidegate.activator.commands import Link, Send, Unlink
from tidegate.aio.channel import ChannelClient, ChannelHandler
from tidegate.aio.loop.tasks import TaskOwner


class SlotChannels:
    """Opens, uses and closes the channels as the waiting room commands."""

    __slots__ = ("_loop", "_of_replica", "_rng", "_tasks", "_token", "_worker")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, worker: str, token: str, rng: random.Random, tasks: TaskOwner
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._token = token
        self._rng = rng
        self._tasks = tasks
        self._of_replica: dict[str, ChannelClient] = {}

    def send(self, command: Send) -> None:
        """Sends a message to a replica. Without a channel it is dropped."""
        channel = self._of_replica.get(command.replica)
        if channel is not None:
            channel.send(command.message)

    def link(self, command: Link, handler: ChannelHandler) -> None:
        """Opens the channel to a replica; its messages go to ``handler``."""
        self.unlink(command)
        self._of_replica[command.replica] = ChannelClient(
            self._loop,
            replica=command.replica,
            address=command.address,
            worker=self._worker,
            token=self._token,
            handler=handler,
            rng=self._rng,
            tasks=self._tasks,
        )

    def unlink(self, command: Link | Unlink) -> None:
        """Closes the channel to a replica, if there is one."""
        channel = self._of_replica.pop(command.replica, None)
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Closes all of them."""
        for channel in self._of_replica.values():
            channel.close()

    def __repr__(self) -> str:
        return f"<SlotChannels {len(self._of_replica)}>"
