"""The pool of shared counters in Redis: one script for each exchange, so that all its reports are one round trip.

A hash for each key and window holds (used, ceiling) by gateway, a sorted set the last time of each gateway. Hashes
expire by themselves. The arithmetic is that of :class:`tidegate.flow.quota.Pool`; one suite runs over both.
"""

from collections.abc import Sequence
from typing import Final

from tidegate.flow.quota import GONE_S, QuotaAnswer, QuotaGrant, QuotaReport
from tidegate.store.redis_link import RedisLink, Script

CALL_S: Final = 0.25
"""A slower exchange is lost: the gateways continue on their own."""
BOUND_KEPT_S: Final = 60.0

_EXCHANGE: Final = Script(
    """
local member, gone_s = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.6f', now - gone_s))
local is_new = redis.call('ZADD', KEYS[1], string.format('%.6f', now), member)
local is_there, members = {}, redis.call('ZRANGE', KEYS[1], 0, -1)
for _, name in ipairs(members) do is_there[name] = true end
local grants = {}
for report = 1, #KEYS - 1 do
  local key, at = KEYS[report + 1], 5 * report - 2
  local amount, used, want = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  local kept_ms, is_bound = ARGV[at + 3], ARGV[at + 4] == '1'
  local taken, others = 0, 0
  local entries = redis.call('HGETALL', key)
  for index = 1, #entries, 2 do
    local name = entries[index]
    local its_used, its_ceiling = string.match(entries[index + 1], '(%d+):(%d+)')
    if name ~= member then
      if is_there[name] then
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
  redis.call('HSET', key, member, string.format('%.0f:%.0f', used, ceiling))
  redis.call('PEXPIRE', key, kept_ms)
  grants[report] = {ceiling, math.max(0, room - ceiling), others}
end
return {string.format('%.6f', now), #members, grants, is_new}
"""
)
"""Arguments: gateway, seconds after which one is gone; of each report: amount, used, want, how long it is kept, whether
it is a bound."""


class RedisPool:
    """The pool. Opened without a call: an absent Redis is a fault of each exchange until it is there."""

    def __init__(self, url: str, prefix: str = "tidegate:quota:") -> None:
        """``prefix``: of its keys; pools with different ones share nothing. Raises InvalidInputError for an invalid
        URL."""
        self._link = RedisLink(url, call_s=CALL_S)
        self._prefix = prefix

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        arguments: list[str | bytes | int] = [member, str(GONE_S)]
        for report in reports:
            budget = report.budget
            kept_s = BOUND_KEPT_S if budget.is_bound else 2 * budget.window_s
            arguments += [budget.amount, report.used, report.want, int(kept_s * 1000) + 1, int(budget.is_bound)]
        keys = [f"{self._prefix}members", *map(self._name, reports)]
        time, members, grants, is_new = await self._link.script(_EXCHANGE, keys, arguments)
        return QuotaAnswer(tuple(QuotaGrant(*grant) for grant in grants), float(time), members, is_new=bool(is_new))

    async def close(self) -> None:
        await self._link.close()

    def _name(self, report: QuotaReport) -> str:
        return f"{self._prefix}{report.budget.window_s:g}:{report.window}:{report.budget.key}"

    def __repr__(self) -> str:
        return f"<RedisPool {self._link!r}>"
