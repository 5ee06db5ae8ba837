"""Four gateways, one pool, virtual time: what is admitted of what comes, window by window."""

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.flow.quota import Ask, Budget, GatewayQuotas, Pool, QuotaReport, Refused, Reservation

TIMEOUT_S = 0.25


@dataclass
class Tally:
    admitted: Counter[int] = field(default_factory=Counter)
    """Amounts by window."""
    by_gateway: Counter[tuple[int, int]] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    requests: int = 0
    waited: int = 0
    longest_wait_s: float = 0.0


class QuotaWorld:
    def __init__(self, budget: Budget, *, seed: int, gateways: int = 4, lost: tuple[float, float] = (0, 0)) -> None:
        self.budget = budget
        self.random = random.Random(seed)
        self.now = 0.0
        self.lost = lost
        self.pool = Pool()
        self.gateways = [GatewayQuotas(members=gateways) for _ in range(gateways)]
        self.tally = Tally()
        self.held_at_most = 0
        self._held = 0
        self._flying = [False] * gateways
        self._waiting: list[list[tuple[int, float, Callable[[Reservation], None]]]] = [[] for _ in range(gateways)]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, action))

    def load(self, gateway: int, rate: float, begin: float, end: float, amount: Callable[[], int]) -> None:
        """Requests of a Poisson process."""
        when = begin
        while (when := when + self.random.expovariate(rate)) < end:
            self.at(when, lambda: self.request(gateway, amount()))

    def run(self, end: float) -> Tally:
        for gateway in range(len(self.gateways)):
            self.at(0, lambda gateway=gateway: self._tick(gateway))  # type: ignore[misc]
        while self._events and self._events[0][0] <= end:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return self.tally

    def request(self, gateway: int, amount: int, then: Callable[[Reservation], None] = lambda _: None) -> None:
        self.tally.requests += 1
        if not self._decide(gateway, amount, self.now, then, is_again=False):
            self.tally.waited += 1
            self._waiting[gateway].append((amount, self.now, then))
        if self.gateways[gateway].is_urgent:
            self._exchange(gateway)

    def hold(self, gateway: int, amount: int, seconds: float) -> None:
        """For a bound: reserves, and settles with nothing after ``seconds``."""

        def held(reservation: Reservation) -> None:
            self._held += amount
            self.held_at_most = max(self.held_at_most, self._held)
            self.at(self.now + seconds, lambda: give_back(reservation))

        def give_back(reservation: Reservation) -> None:
            self._held -= amount
            self.gateways[gateway].settle(reservation, 0, self.now)

        self.request(gateway, amount, held)

    def _decide(
        self, gateway: int, amount: int, since: float, then: Callable[[Reservation], None], *, is_again: bool
    ) -> bool:
        verdict = self.gateways[gateway].reserve(self.budget, amount, self.now, is_again=is_again)
        window = 0 if self.budget.is_bound else int(self.now // self.budget.window_s)
        match verdict:
            case Ask():
                return False
            case Refused():
                self.tally.refused[window] += amount
            case Reservation():
                self.tally.admitted[window] += amount
                self.tally.by_gateway[window, gateway] += amount
                then(verdict)
        self.tally.longest_wait_s = max(self.tally.longest_wait_s, self.now - since)
        return True

    def _tick(self, gateway: int) -> None:
        self._exchange(gateway)
        self.at(self.now + 0.05, lambda: self._tick(gateway))

    def _exchange(self, gateway: int) -> None:
        quotas = self.gateways[gateway]
        if self._flying[gateway] or not (quotas.is_urgent or quotas.next_wakeup() <= self.now):
            return
        reports = quotas.take(self.now)
        self._flying[gateway] = True
        if self.lost[0] <= self.now < self.lost[1]:
            self.at(self.now + TIMEOUT_S, lambda: self._failed(gateway))
        else:
            there, back = (self.random.uniform(0.0005, 0.005) for _ in range(2))
            self.at(self.now + there, lambda: self._arrived(gateway, reports, back))

    def _arrived(self, gateway: int, reports: tuple[QuotaReport, ...], back: float) -> None:
        answer = self.pool.exchange(str(gateway), reports, self.now)

        def answered() -> None:
            self.gateways[gateway].answer(answer, self.now)
            self._again(gateway)

        self.at(self.now + back, answered)

    def _failed(self, gateway: int) -> None:
        self.gateways[gateway].failed()
        self._again(gateway)

    def _again(self, gateway: int) -> None:
        self._flying[gateway] = False
        waiting, self._waiting[gateway] = self._waiting[gateway], []
        for amount, since, then in waiting:
            if not self._decide(gateway, amount, since, then, is_again=True):
                self._waiting[gateway].append((amount, since, then))
        if self.gateways[gateway].is_urgent:
            self._exchange(gateway)
