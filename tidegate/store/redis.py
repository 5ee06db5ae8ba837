"""The store in Redis, for deployments that keep their records elsewhere than on their machine.

Three Redis keys, with the deployment's name in them, hold it: values and versions by key, and a stream with one entry
for each write. The entry's id is the write's version. Scripts write all three in one step, so a reader never sees half
a write. A version is the time of Redis in microseconds, or one more than the last if that is larger: it also rises over
a Redis that lost its data.

A watch keeps the id up to which it has seen the stream. If that entry is still there, all later entries are the
changes. If not (trimmed, restarted without the last writes, emptied), everything is read and compared with what the
watch has delivered. Nothing depends on a connection, so a lost one costs time and no change. The stream's own blocking
read wakes a watch at a write; it looks once in ``BEAT_S`` in any case.

Redis must keep its data on disk (``appendfsync always``) for a confirmed write to survive a power cut.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from tidegate.store.records import (
    VALUE_LIMIT,
    Change,
    ConflictError,
    Record,
    StoreFaultError,
    check_key,
    check_value,
)
from tidegate.store.redis_link import CALL_S, RedisLink, Script

BEAT_S: Final = 1.0
LOG_ENTRIES: Final = 1024
"""Writes that a watch may be behind before it reads everything again."""

_Words = list[str | bytes]  # in the class `list` is the method


def keys_of(name: str) -> tuple[str, str, str]:
    """Returns the Redis keys of a deployment's records; without a name those of a database with only one deployment."""
    start = f"tidegate:{name}:" if name else "tidegate:"
    return (f"{start}values", f"{start}versions", f"{start}changes")


_COMMON: Final = """
local values, versions, changes = KEYS[1], KEYS[2], KEYS[3]
local function next_version(key)
  local time = redis.call('TIME')
  local version = time[1] * 1000000 + time[2]
  local last = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
  if last then version = math.max(version, tonumber(string.match(last[1], '^%d+')) + 1) end
  redis.call('XADD', changes, 'MAXLEN', '~', LOG_ENTRIES, string.format('%.0f-0', version), 'key', key)
  return version
end
local function value_of(key)
  if redis.call('HSTRLEN', values, key) > VALUE_LIMIT then
    return nil, key .. ' has ' .. redis.call('HSTRLEN', values, key) .. ' bytes; allowed: at most VALUE_LIMIT'
  end
  return redis.call('HGET', values, key)
end
""".replace("LOG_ENTRIES", str(LOG_ENTRIES)).replace("VALUE_LIMIT", str(VALUE_LIMIT))

_WRITE: Final = Script(
    _COMMON
    + """
local key, expect = ARGV[1], ARGV[2]
local found = tonumber(redis.call('HGET', versions, key) or '0')
if expect ~= '' and tonumber(expect) ~= found then return {'conflict', found} end
if not ARGV[3] and found == 0 then return {'absent', 0} end
local version = next_version(key)
if ARGV[3] then
  redis.call('HSET', versions, key, string.format('%.0f', version))
  redis.call('HSET', values, key, ARGV[3])
else
  redis.call('HDEL', versions, key)
  redis.call('HDEL', values, key)
end
return {'done', version}
"""
)
"""Arguments: key, expected version or nothing, value; without a value the key is deleted."""

_READ: Final = Script(
    _COMMON
    + """
local version = redis.call('HGET', versions, ARGV[1])
if not version then return {} end
local value, fault = value_of(ARGV[1])
if fault then return redis.error_reply(fault) end
return {version, value}
"""
)

_SINCE: Final = Script(
    _COMMON
    + """
local prefix, position = ARGV[1], ARGV[2]
local last = redis.call('XREVRANGE', changes, '+', '-', 'COUNT', 1)[1]
local is_whole = position == '0-0' or #redis.call('XRANGE', changes, position, position) == 0
local answer, seen = {last and last[1] or '0-0', is_whole and 1 or 0}, {}
local function add(key, written)
  if seen[key] or string.sub(key, 1, #prefix) ~= prefix then return end
  seen[key] = true
  local version = redis.call('HGET', versions, key)
  local value, fault = '', nil
  if version then value, fault = value_of(key) end
  if fault then return fault end
  answer[#answer + 1] = {key, version or written, version and 1 or 0, value}
end
if is_whole then
  for _, key in ipairs(redis.call('HKEYS', versions)) do
    local fault = add(key, '0')
    if fault then return redis.error_reply(fault) end
  end
else
  local entries = redis.call('XREVRANGE', changes, '+', '(' .. position)
  for _, entry in ipairs(entries) do
    local fault = add(entry[2][2], string.match(entry[1], '^%d+'))
    if fault then return redis.error_reply(fault) end
  end
end
return answer
"""
)
"""Arguments: prefix, position. Returns the new position, whether this is everything, then (key, version, is there,
value) of each."""


class RedisStore:
    """A store in Redis. Open with :meth:`open`; close with :meth:`close`, which ends all watches."""

    def __init__(self, link: RedisLink, name: str = "") -> None:
        self._link = link
        self._name = name
        self._keys = keys_of(name)
        self._fault: str | None = None
        self._closing = asyncio.Event()

    @classmethod
    async def open(cls, url: str, *, name: str = "", call_s: float = CALL_S, start_s: float = 0.0) -> "RedisStore":
        """Opens the store at ``url``; ``name``: of the deployment, if several use one database; ``start_s``: time in
        which calls may be slower.

        Raises InvalidInputError for a bad URL, StoreFaultError if Redis cannot be reached.
        """
        link = RedisLink(url, call_s=call_s, start_s=start_s)
        try:
            await link.check()
        except BaseException:
            await link.close()
            raise
        return cls(link, name)

    @property
    def place(self) -> str:
        return f"{self._link.address}, as {self._name}" if self._name else str(self._link.address)

    @property
    def fault(self) -> str | None:
        return self._fault

    async def get(self, key: str) -> Record | None:
        check_key(key)
        answer = await self._link.script(_READ, self._keys, [key])
        return Record(key, answer[1], int(answer[0])) if answer else None

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> Record:
        check_key(key)
        check_value(value)
        _, version = await self._write(key, expect, value)
        return Record(key, value, version)

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        check_key(key)
        outcome, _ = await self._write(key, expect, None)
        return outcome == b"done"

    async def list(self, prefix: str = "") -> tuple[Record, ...]:
        return tuple(sorted(await _Position(prefix, self._keys).everything(self._link), key=lambda record: record.key))

    async def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        position = _Position(prefix, self._keys)
        while not self._closing.is_set():
            try:
                for change in await position.news(self._link):
                    yield change
                await self._link.wait_for(self._keys[2], position.id, BEAT_S)
            except StoreFaultError:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._link.rest_s or BEAT_S):
                        await self._closing.wait()

    async def close(self) -> None:
        self._closing.set()
        await self._link.close()

    async def _write(self, key: str, expect: int | None, value: bytes | None) -> tuple[bytes, int]:
        arguments: _Words = [key, "" if expect is None else str(expect)]
        if value is not None:
            arguments.append(value)
        try:
            outcome, version = await self._link.script(_WRITE, self._keys, arguments)
        except StoreFaultError as error:
            self._fault = str(error)
            raise
        self._fault = None
        if outcome == b"conflict":
            raise ConflictError(key, expect or 0, version)
        return outcome, version

    def __repr__(self) -> str:
        return f"<RedisStore {self._link!r}, fault {self._fault}>"


class _Position:
    """The position of one watcher in the stream, and the versions that it has delivered."""

    def __init__(self, prefix: str, keys: tuple[str, str, str]) -> None:
        self._prefix = prefix
        self._keys = keys
        self._delivered: dict[str, int] = {}
        self.id = "0-0"

    async def everything(self, link: RedisLink) -> list[Record]:
        _, _, *found = await link.script(_SINCE, self._keys, [self._prefix, "0-0"])
        return [Record(key.decode(), value, int(version)) for key, version, _, value in found]

    async def news(self, link: RedisLink) -> list[Change]:
        """Returns the changes since the last call, by version: the newest state of each key."""
        last, is_whole, *found = await link.script(_SINCE, self._keys, [self._prefix, self.id])
        changes: list[Change] = []
        gone = set(self._delivered) if is_whole else set[str]()
        for name, number, is_there, value in found:
            key, version = name.decode(), int(number)
            gone.discard(key)
            if is_there and self._delivered.get(key) != version:
                changes.append(Change(key, version, Record(key, value, version)))
            elif not is_there and key in self._delivered:
                changes.append(Change(key, version, None))
        latest = int(last.split(b"-")[0])
        changes += [Change(key, max(latest, self._delivered[key] + 1), None) for key in gone]
        for change in changes:
            if change.record is None:
                del self._delivered[change.key]
            else:
                self._delivered[change.key] = change.version
        self.id = last.decode()
        return sorted(changes, key=lambda change: change.version)
