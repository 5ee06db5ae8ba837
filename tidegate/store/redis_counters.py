"""The pool of shared counters in Redis: one script for each exchange, so that all its reports are one round trip.

A hash for each key and window holds (used, ceiling, time) by gateway, and beside them the sum that is taken. Sorted
sets hold the last time of each gateway, and of each hash. All expire by themselves. The arithmetic is that of
:class:`tidegate.flow.quota.Pool`; one suite runs over both.
"""

from collections.abc import Sequence
from typing import Final

from tidegate.flow.quota import GONE_S, QuotaAnswer, QuotaGrant, QuotaReport, QuotaTotal
from tidegate.store.redis_link import RedisLink, Script

CALL_S: Final = 0.25
"""A slower exchange is lost: the gateways continue on their own."""
BOUND_KEPT_S: Final = 60.0
LISTED_S: Final = 10.0
"""Windows below are not listed: they would be over before the list is used."""
LIST_KEPT_S: Final = 120.0
"""As long as a hash is kept: two windows of a minute."""
LIST_MOST: Final = 2000
"""A longer list is continued by the next call: each has to end within ``CALL_S``. More than an exchange has reports."""

_EXCHANGE: Final = Script(
    """
local member, gone_s = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.6f', now - gone_s))
local is_new = redis.call('ZADD', KEYS[1], string.format('%.6f', now), member)
redis.call('PEXPIRE', KEYS[1], gone_s * 1000)
local is_there, members = {}, redis.call('ZRANGE', KEYS[1], 0, -1)
for _, name in ipairs(members) do is_there[name] = true end
local grants, listed = {}, {}
for report = 1, #KEYS - 2 do
  local key, at = KEYS[report + 2], 6 * report - 3
  local amount, used, want = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local kept_ms, is_bound = ARGV[at + 3], ARGV[at + 4] == '1'
  local taken, others = 0, 0
  local entries = redis.call('HGETALL', key)
  for index = 1, #entries, 2 do
    local name = entries[index]
    local its_used, its_ceiling, at_s = string.match(entries[index + 1], '(%d+):(%d+):?([%d.]*)')
    if name ~= member and name ~= '' then
      if is_there[name] and not (is_bound and now - (tonumber(at_s) or now) > gone_s) then
        taken, others = taken + its_ceiling, others + its_used
      elseif is_bound then
        redis.call('HDEL', key, name)
      else
        taken, others = taken + its_used, others + its_used
      end
    end
  end
  local room = amount - taken
  local ceiling = math.max(used, math.min(used + want, room))
  local mine, sum = string.format('%.0f:%.0f:%.6f', used, ceiling, now), string.format('0:%.0f', taken + ceiling)
  redis.call('HSET', key, member, mine, '', sum)
  redis.call('PEXPIRE', key, kept_ms)
  if ARGV[at + 5] == '1' then
    listed[#listed + 1] = string.format('%.6f', now)
    listed[#listed + 1] = key
  end
  grants[report] = {ceiling, math.max(0, room - ceiling), others}
end
if #listed > 0 then redis.call('ZADD', KEYS[2], unpack(listed)) end
return {string.format('%.6f', now), #members, grants, is_new}
"""
)
"""Arguments: gateway, seconds after which one is gone; of each report: amount, used, want, how long it is kept, whether
it is a bound, whether it is listed. The sum stands in a field without a name, like the figures of a gateway that is
gone and has used nothing: the script of an older version leaves it out."""
_TOTALS: Final = Script(
    """
local time = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', time[1] - ARGV[2]))
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 1000)
local listed = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
local found = {}
for at = 1, #listed, 2 do
  local sum = redis.call('HGET', listed[at], '')
  if sum then found[#found + 1] = {listed[at], tonumber(string.match(sum, ':(%d+)'))} end
end
return {found, #listed == 2 * ARGV[3] and listed[#listed]}
"""
)
"""Arguments: time since which, seconds for which hashes are kept, how many are listed."""


class RedisPool:
    """The pool. Opened without a call: an absent Redis is a fault of each exchange until it is there."""

    def __init__(self, url: str, prefix: str = "tidegate:quota:") -> None:
        """``prefix``: of its keys; pools with different ones share nothing. Raises InvalidInputError for an invalid
        URL."""
        self._link = RedisLink(url, call_s=CALL_S)
        self._prefix = prefix
        self._listed = f"{prefix}listed"

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        arguments: list[str | bytes | int] = [member, str(GONE_S)]
        for report in reports:
            budget = report.budget
            kept_s = BOUND_KEPT_S if budget.is_bound else 2 * budget.window_s
            arguments += [budget.amount, report.used, report.want, int(kept_s * 1000) + 1, int(budget.is_bound)]
            arguments.append(int(budget.window_s >= LISTED_S))
        keys = [f"{self._prefix}members", self._listed, *map(self._name, reports)]
        time, members, grants, is_new = await self._link.script(_EXCHANGE, keys, arguments)
        return QuotaAnswer(tuple(QuotaGrant(*grant) for grant in grants), float(time), members, is_new=bool(is_new))

    async def totals(self, since: float) -> tuple[tuple[QuotaTotal, ...], float | None]:
        """Returns what is taken of budgets that were reported since this time of Redis's clock, and the time from which
        the next call continues; None if these are all. Raises StoreError."""
        arguments = f"{since:.6f}", str(LIST_KEPT_S), str(LIST_MOST)
        found, more = await self._link.script(_TOTALS, [self._listed], arguments)
        totals = tuple(self._total(name.decode(), taken) for name, taken in found)
        return totals, None if more is None else float(more)

    async def close(self) -> None:
        await self._link.close()

    def _name(self, report: QuotaReport) -> str:
        return f"{self._prefix}{report.budget.window_s:g}:{report.window}:{report.budget.key}"

    def _total(self, name: str, taken: int) -> QuotaTotal:
        window_s, window, key = name.removeprefix(self._prefix).split(":", 2)
        return QuotaTotal(key, float(window_s), int(window), taken)

    def __repr__(self) -> str:
        return f"<RedisPool {self._link!r}>"
