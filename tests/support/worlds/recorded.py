"""Recordings for tests: four minutes of a world's life under a policy."""

import math
import random
from functools import cache

from tests.support.worlds.autoscaling import World, activation, revision
from tidegate.autoscaler.replay.recorder import Part, Recorder
from tidegate.function import Revision, Scaling

SECONDS = 240
PARAMETERS = {
    "kpa": {"scale-down-delay": "20s", "panic-threshold-percentage": "150"},
    "smif": {"cooldown": "10s"},
    "hpa": {"metric": "slots", "period": "2s", "window": "5s", "cooldown": "20s"},
}


class Recorded(World):
    """A world whose decisions are recorded; the load rises, falls and ends, and samples are lost now and then."""

    def live(self, seconds: int) -> list[Part]:
        recorder, rng, parts = Recorder(None, part_figures=50), random.Random(7), list[Part]()
        for second in range(seconds):
            self.load = max(0.0, 6.0 + 6.0 * math.sin(second / 15.0)) if second < 0.7 * seconds else 0.0
            self.arrivals += round(3 * self.load)
            self.are_samples_lost = rng.random() < 0.05
            self.now += 1.0
            if not self.are_samples_lost:
                self._sample()
            self.collector.expect(["g0"], self.ready)
            seen = self.collector.observe(self.revision, self.fleet(), self.now)
            part = recorder.part(self.revision, self.decider, self.now)
            assert part is not None
            if not parts or part is not parts[-1]:
                parts.append(part)
            if self.load and not self.ready:
                pushed = activation(self.revision.id)
                decision = self.decider.activate(pushed, self.now, seen)
                part.add(seen, decision, pushed)
            else:
                decision = self.decider.tick(self.now, seen)
                part.add(seen, decision)
            self.obey(decision)
        return parts


def spec_of(policy: str) -> Revision:
    scaling = Scaling(policy=policy, parameters=PARAMETERS.get(policy, {}), scale_to_zero_after_s=15.0)
    return revision(scaling=scaling, concurrency=2)


@cache
def recording(policy: str) -> str:
    """Four minutes of a policy's life, all its parts in one text."""
    return b"".join(part.encoded() for part in Recorded(spec_of(policy)).live(SECONDS)).decode()
