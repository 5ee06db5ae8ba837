"""Two groups of different speed, a saturating closed loop: what do the learnt weights make of them? (SMIF, Fig. 6a)

``concurrency: 0``. With early binding nothing but the weights decides where a request goes, as in the paper: a group
that gets more than its part holds up all callers. With late binding, the default, the lines at the replicas count
beside them. The rates of the groups are measured alone, before and after.
"""

from collections.abc import Iterator

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Look, Run, converged_s, throughput_ips

CALLERS = 64
EMULATED = (Kind(name="v100", base_s=1 / 117.0, price=3.06), Kind(name="t4", base_s=1 / 65.25, price=0.526))
REAL = (Kind(name="cpu-2core", cores=2, price=2.0), Kind(name="cpu-1core", cores=1))
"""Real cores: the model burns half of a core on each of them, for half as long an inference where it has two."""


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    with lab(EMULATED) as world:
        yield from _Case(setup, judge, world, "emulated", EMULATED, 0.97).rows()
    if setup.smoke:
        return
    with lab(REAL) as world:
        yield from _Case(setup, judge, world, "real", REAL, 0.90).rows()


class _Case:
    """``kinds``: the faster one, the slower one."""

    def __init__(
        self, setup: Setup, judge: Judge, world: Lab, name: str, kinds: tuple[Kind, Kind], least: float
    ) -> None:
        self.setup, self.judge, self.world, self.name, self.least = setup, judge, world, name, least
        self.fast, self.slow = kinds[0].name, kinds[1].name
        self.loads = 0

    def rows(self) -> Iterator[Row]:
        before, both = self._alone(), [self.fast, self.slow]
        found = self._saturated(self.setup.long(60, 6), on=both, replicas=2, concurrency=0)
        early = self._saturated(self.setup.long(30, 3), on=both, replicas=2, concurrency=0, binding="early")
        after = before if self.setup.smoke else self._alone()  # A shared machine drifts.
        mu = {name: (before[name] + after[name]) / 2.0 for name in before}
        for name, rate in mu.items():
            yield self.judge.row(f"{self.name}, {name} alone", "throughput_ips", rate, note=f"then {after[name]:.1f}")
        yield from self._learnt(mu, found, "learnt weights")
        yield from self._learnt(mu, early, "learnt weights, early binding")
        write_timeline(self.setup, f"sm3-{self.name}", found, 1.0)
        yield from self._fixed(mu, "50:50, early binding", 0, "early")
        yield from self._fixed(mu, "50:50", 0, "late")
        yield from self._fixed(mu, "50:50 with a limit", 2, "late")

    def _alone(self) -> dict[str, float]:
        seconds = self.setup.long(12, 2)
        return {
            name: self._rate(self._saturated(seconds, on=[name], replicas=1, concurrency=0))
            for name in (self.fast, self.slow)
        }

    def _learnt(self, mu: dict[str, float], found: Run, name: str) -> Iterator[Row]:
        case = f"{self.name}, {name}"
        share = mu[self.fast] / sum(mu.values())

        def is_right(look: Look) -> bool:
            return abs(look.weights.get(self.fast, 0.0) - share) <= 0.025

        yield from client_rows(self.judge, case, found)
        last = found.looks[-1].weights.get(self.fast)
        first = next((look.weights[self.fast] for look in found.looks if self.fast in look.weights), 0.0)
        note = f"ideal {share:.3f}, {first:.3f} at the beginning"
        yield self.judge.row(case, "weight_of_the_faster", last, note=note)
        since = converged_s(found.looks, is_right)
        note = "" if since is not None else "it never did"
        most = 30 if self.name == "emulated" else None  # Real rates of a shared machine never stand still.
        yield self.judge.row(case, "converged_s", found.seconds if since is None else since, most=most, note=note)
        part = self._rate(found) / sum(mu.values())
        yield self.judge.row(case, "throughput_of_the_sum", part, least=self.least)

    def _fixed(self, mu: dict[str, float], name: str, limit: int, binding: str) -> Iterator[Row]:
        case = f"{self.name}, {name}"
        seconds = self.setup.long(20, 3)
        found = self._saturated(
            seconds,
            on=[self.fast, self.slow],
            replicas=2,
            concurrency=limit,
            binding=binding,
            weights="equal",
        )
        yield from client_rows(self.judge, case, found)
        rate = self._rate(found)
        if binding == "early":
            part = rate / (2 * min(mu.values()))
            yield self.judge.row(case, "throughput_of_twice_the_slower", part, least=0.95, most=1.05)
        else:
            least = self.least if limit else None
            yield self.judge.row(case, "throughput_of_the_sum", rate / sum(mu.values()), least=least)

    def _saturated(
        self,
        seconds: float,
        *,
        on: list[str],
        replicas: int,
        concurrency: int,
        binding: str = "late",
        weights: str = "learnt",
    ) -> Run:
        annotations: dict[str, object] = {
            "policy": "kpa",
            "concurrency": concurrency,
            "binding": binding,
            "group-weights": weights,
        }
        self.loads += 1
        function = f"pair{self.loads}"  # What is learnt is kept by name: each begins with equal weights.
        self.world.deploy(
            function,
            on=on,
            replicas=replicas,
            handler="work.py:Spin",
            annotations=annotations | {"min-scale": replicas, "max-scale": replicas},
        )
        found = self.world.closed(function, CALLERS, seconds)
        self.world.delete(function)
        return found

    @staticmethod
    def _rate(found: Run) -> float:
        """Returns the rate of the second half: the weights have settled, the queues are full."""
        return throughput_ips(found.outcomes, found.seconds / 2, found.seconds)
