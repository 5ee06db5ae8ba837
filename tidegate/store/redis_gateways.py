"""Where remote gateways and their control process meet: a Redis that has the route table, the present gateways and what
waits at zero.

Of the table there is one copy, written by a script that compares (epoch, number): a control process that was replaced
cannot overwrite the table of its successor. A gateway reads it when it starts, whenever it changes, and once a second.
Each gateway registers itself again once a second, and counts as gone after ``GONE_S``. A waiting request that needs a
replica is an entry of a short stream.

Nothing here has to survive: after the loss of all data the next second restores it.
"""

from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import TidegateError
from tidegate.store.redis_link import RedisLink, Script

CALL_S: Final = 0.5
GONE_S: Final = 5.0
"""A gateway that has not registered for this long is gone."""
DEMAND_ENTRIES: Final = 1000

Version = tuple[int, int]
"""(epoch, number) of a route table."""

_PUT: Final = Script(
    """
local epoch, number = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('HMGET', KEYS[1], 'epoch', 'number')
local its_epoch, its_number = tonumber(found[1] or '-1'), tonumber(found[2] or '-1')
if its_epoch > epoch or (its_epoch == epoch and its_number > number) then
  return {string.format('%.0f', its_epoch), string.format('%.0f', its_number)}
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'number', ARGV[2], 'table', ARGV[3], 'deployment', ARGV[4])
redis.call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'epoch', ARGV[1], 'number', ARGV[2])
return {ARGV[1], ARGV[2]}
"""
)
"""Arguments: epoch, number, table, mark of the deployment. Returns the version that is there afterwards."""

_GET: Final = Script(
    """
local epoch, number = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('HMGET', KEYS[1], 'epoch', 'number', 'deployment')
if not found[1] then return {} end
if found[3] and found[3] ~= '' and ARGV[3] ~= '' and found[3] ~= ARGV[3] then return {'other'} end
local its_epoch, its_number = tonumber(found[1]), tonumber(found[2])
if its_epoch < epoch or (its_epoch == epoch and its_number <= number) then return {} end
return {found[1], found[2], redis.call('HGET', KEYS[1], 'table')}
"""
)
"""Arguments: the version that the reader has, mark of its deployment. Returns a newer table, nothing, or that the table
is another deployment's."""

_REGISTER: Final = Script(
    """
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%.6f', time[1] + time[2] / 1000000), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
"""
)

_LEAVE: Final = Script("redis.call('ZREM', KEYS[1], ARGV[1]) redis.call('HDEL', KEYS[2], ARGV[1])")

_MEET: Final = Script(
    """
local time = redis.call('TIME')
local border = string.format('%.6f', time[1] + time[2] / 1000000 - tonumber(ARGV[1]))
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. border)) do
  redis.call('ZREM', KEYS[1], name)
  redis.call('HDEL', KEYS[2], name)
end
local found = redis.call('HMGET', KEYS[3], 'epoch', 'number')
return {found[1] or '-1', found[2] or '-1', redis.call('HGETALL', KEYS[2])}
"""
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """What is there: the version of the table, (-1, -1) without one, and what each gateway has registered, by name."""

    version: Version
    gateways: dict[str, bytes]


class OtherDeploymentError(TidegateError):
    """What is there is of another deployment, which has the same name."""


class RedisGateways:
    """The meeting place of one deployment. Opened without a call; every call raises StoreFaultError."""

    def __init__(self, url: str, name: str, *, mark: str = "", start_s: float = 0.0) -> None:
        """``name``: of the deployment; ``mark``: what it is known by, if others may have its name; ``start_s``: as of
        :class:`RedisLink`. Raises InvalidInputError for an invalid URL."""
        self._mark = mark
        self._link = RedisLink(url, call_s=CALL_S, start_s=start_s)
        start = f"tidegate:{name}:"
        self._table = f"{start}table"
        self._tables = f"{start}tables"
        self._seen = f"{start}gateways-seen"
        self._gateways = f"{start}gateways"
        self._demand = f"{start}demand"

    @property
    def place(self) -> str:
        """The address, without a password."""
        return str(self._link.address)

    @property
    def rest_s(self) -> float:
        """Time until the next call is worth its while."""
        return self._link.rest_s

    # --- the table ---

    async def put_table(self, version: Version, table: bytes) -> Version:
        """Writes a table unless a newer one is there; returns the version that is there afterwards."""
        found = await self._link.script(_PUT, [self._table, self._tables], [*version, table, self._mark])
        return _version(found)

    async def table(self, after: Version) -> bytes | None:
        """Returns the table if it is newer. Raises OtherDeploymentError too."""
        found = await self._link.script(_GET, [self._table], [*after, self._mark])
        if found == [b"other"]:
            raise OtherDeploymentError(
                f"{self.place}: the route table of this name is of a deployment with another token"
            )
        return bytes(found[2]) if found else None

    async def next_table(self, wait_s: float) -> None:
        """Returns when a table is written, or after ``wait_s``."""
        await self._link.entries(self._tables, "$", wait_s)

    # --- the gateways ---

    async def register(self, gateway: str, value: bytes) -> None:
        await self._link.script(_REGISTER, [self._seen, self._gateways], [gateway, value])

    async def leave(self, gateway: str) -> None:
        await self._link.script(_LEAVE, [self._seen, self._gateways], [gateway])

    async def meet(self) -> Meeting:
        epoch, number, values = await self._link.script(_MEET, [self._seen, self._gateways, self._table], [str(GONE_S)])
        pairs = zip(values[::2], values[1::2], strict=True)
        return Meeting((int(epoch), int(number)), {name.decode(): value for name, value in pairs})

    # --- demand ---

    async def ask(self, activation: bytes) -> None:
        """Asks for a replica for a waiting request."""
        await self._link.add(self._demand, DEMAND_ENTRIES, activation)

    async def asked(self, after: str, wait_s: float) -> tuple[str, list[bytes]]:
        """Returns what was asked for after an entry (``$``: from now on), and the last entry."""
        found = await self._link.entries(self._demand, after, wait_s)
        return (found[-1][0] if found else after), [fields[b"value"] for _, fields in found]

    async def close(self) -> None:
        await self._link.close()

    def __repr__(self) -> str:
        return f"<RedisGateways {self._link!r}>"


def _version(found: Any) -> Version:
    epoch, number = found
    return int(epoch), int(number)
