"""Commands of operators about a function's traffic: splits by hand, rollback, rollouts.

Each command is checked first; all its faults are reported together.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tidegate.clock import Clock
from tidegate.control.api import pipelines
from tidegate.control.api.describe import FunctionViews
from tidegate.control.api.errors import RefusedError, UnknownFunctionError
from tidegate.control.rounds.publisher import Publisher
from tidegate.control.rounds.rollouts import Rollouts
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.world import World
from tidegate.control.state.registry import Deployed, RevisionRecord
from tidegate.control.views.functions import RolloutView, SharePart, SplitView
from tidegate.control.views.requests import RollbackRequest, RolloutAction, RolloutRequest, SplitRequest
from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.annotations import ROLLOUT
from tidegate.records.rollout import Phase, Rollout, RolloutPlan
from tidegate.schema.rows import NAME, Text, allowed_for, assemble
from tidegate.schema.units import UnreadableError
from tidegate.traffic.stages import begun, ended, paused, resumed

SUM: Final = 100.0
SUM_TOLERANCE: Final = 0.005
TAG: Final = Text(NAME, "a DNS label: 1 to 63 of a-z, 0-9 and -, neither end a -")
LABEL: Final = 63
"""Largest number of characters in one label of a host name."""


class TrafficCommands:
    """Checks and carries out the commands. ``soon`` runs the next round at once."""

    def __init__(
        self,
        *,
        world: World,
        publisher: Publisher,
        rollouts: Rollouts,
        views: FunctionViews,
        clock: Clock,
        soon: Callable[[], None],
    ) -> None:
        self._world = world
        self._registry = world.registry
        self._publisher = publisher
        self._rollouts = rollouts
        self._views = views
        self._clock = clock
        self._soon = soon

    # --- splits by hand ---

    def split(self, name: str) -> SplitView:
        deployed = self._deployed(name)
        shares = tuple(
            SharePart(
                revision=each.id,
                percent=each.percent,
                tags=each.tags,
                shadow_percent=each.shadow_percent,
                ready=self._is_ready(each),
            )
            for each in sorted(self._world.tracked(name), key=lambda each: -each.percent)
        )
        kept = tuple(each.revision.id for each in self._registry.numbers(name).values())
        candidate = None if deployed.candidate is None else deployed.candidate.revision.id
        return SplitView(
            function=name,
            is_pinned=bool(deployed.split),
            parts=shares,
            kept=kept,
            candidate=candidate,
            is_returning=deployed.is_returning,
        )

    def _is_ready(self, tracked: TrackedRevision) -> bool:
        """Returns whether a revision has a ready replica; of a pipeline, whether each of its stages has."""
        function = tracked.record.revision.function
        if not function.is_pipeline:
            return self._world.is_ready(tracked.id)
        stages = [self._world.tracked(stage.function) for stage in function.server.stages]
        return all(any(self._world.is_ready(each.id) for each in stage) for stage in stages)

    async def set_split(self, name: str, request: SplitRequest) -> SplitView:
        """Sets percents and tags by hand. Raises InvalidInputError, StoreError."""
        deployed = self._deployed(name)
        faults: list[Fault] = []
        split = self._percents(deployed, request, faults)
        tags = dict(deployed.tags)
        known = ", ".join(sorted(tags)) or "none"
        faults += [Fault("untag", tag, f"a tag of {name}: {known}") for tag in request.untag if tag not in tags]
        tags = {tag: number for tag, number in tags.items() if tag not in request.untag}
        for tag, text in request.tags.items():
            if (allowed := _allowed(tag, name)) is not None:
                faults.append(Fault("tag", tag, allowed))
            record = self._revision(deployed, text, f"tag {tag}", faults)
            if record is not None:
                pipelines.check_revision(record.function, self._registry)
                tags[tag] = record.number
        if request.follow and request.split:
            faults.append(Fault("follow", "true", "either a split or to follow the newest revision"))
        if not (request.split or request.follow or request.tags or request.untag):
            faults.append(Fault("request", "nothing", "a split, tags, or to follow the newest revision"))
        if faults:
            raise InvalidInputError("traffic", faults)
        now = self._clock.now()
        if request.follow:
            await self._registry.follow(name, now)
        if split is not None or tags != deployed.tags:
            await self._registry.split(name, split, tags, now)
        await self._take_up(name)
        return self.split(name)

    def _percents(self, deployed: Deployed, request: SplitRequest, faults: list[Fault]) -> Mapping[int, float] | None:
        if not request.split:
            return None
        split: dict[int, float] = {}
        for text, percent in request.split.items():
            if not 0 <= percent <= SUM:
                faults.append(Fault(f"split of {text}", f"{percent:g}", "a percent, 0 to 100"))
            record = self._revision(deployed, text, "split", faults)
            if record is not None and record.number in split:
                faults.append(Fault("split", text, f"each revision once; {record.revision.id} is named twice"))
            elif record is not None:
                pipelines.check_revision(record.function, self._registry)
                split[record.number] = percent
        total = sum(request.split.values())
        if abs(total - SUM) > SUM_TOLERANCE:
            faults.append(Fault("split", f"a sum of {total:g}", "percents that add up to 100"))
        return {number: percent for number, percent in split.items() if percent > 0}

    # --- rollback ---

    async def rollback(self, name: str, request: RollbackRequest) -> SplitView:
        """Returns the traffic to an earlier revision. Raises InvalidInputError, RefusedError, StoreError."""
        deployed = self._deployed(name)
        faults: list[Fault] = []
        if request.to is not None:
            record = self._revision(deployed, request.to, "to", faults)
            if record is not None and record is deployed.current and not (deployed.rolling or deployed.split):
                faults.append(Fault("to", request.to, "another revision: this one serves"))
        else:
            number = deployed.current.number if deployed.rolling else self._registry.earlier(name)
            record = None if number is None else self._registry.numbers(name)[number]
            if record is None:
                raise RefusedError(f"{name} has no earlier revision; {deployed.current.revision.id} is the first kept")
        if faults or record is None:
            raise InvalidInputError("rollback", faults)
        pipelines.check_revision(record.function, self._registry)
        rolling = deployed.rolling
        over = None if rolling is None else self._ended(rolling, Phase.ABORTED, "rolled back by hand")
        await self._registry.give_back(name, record.number, self._clock.now(), over)
        if over is not None:
            self._rollouts.changed(deployed, over)
        await self._take_up(name)
        return self.split(name)

    # --- rollouts ---

    def rollout(self, name: str) -> RolloutView:
        """Returns the rollout under way, or the last one. Raises RefusedError if there was none."""
        deployed = self._deployed(name)
        if deployed.rollout is None:
            raise RefusedError(f"no revision of {name} has been rolled out step by step yet")
        return self._views.rollout(deployed, deployed.rollout)

    async def change_rollout(self, name: str, request: RolloutRequest) -> RolloutView:
        """Raises InvalidInputError, RefusedError, StoreError."""
        deployed = self._deployed(name)
        if request.action is RolloutAction.BEGIN:
            await self._begin(deployed, request)
        else:
            after = self._acted(deployed, request.action)
            await self._registry.steer(name, after)
            self._rollouts.changed(deployed, after)
        await self._take_up(name)
        return self.rollout(name)

    async def _begin(self, deployed: Deployed, request: RolloutRequest) -> None:
        faults: list[Fault] = []
        plan = _plan(request.plan, faults)
        named = deployed.latest if request.to is None else self._revision(deployed, request.to, "to", faults)
        if deployed.rolling is None and request.to is None:
            newest = self._registry.numbers(deployed.name)
            named = newest[max(newest)]
        if named is not None and named is deployed.current:
            faults.append(
                Fault("to", named.revision.id, f"another revision than this one, which serves: {self._kept(deployed)}")
            )
        if len(deployed.split) > 1:
            allowed = "a function whose traffic one revision has: `tidegate traffic NAME --to REVISION=100` first"
            faults.append(Fault("function", f"{deployed.name}, split by hand", allowed))
        if faults or named is None or plan is None:
            raise InvalidInputError("rollout", faults)
        now = self._clock.now()
        fresh = Rollout(candidate=named.number, base=deployed.current.number, plan=plan, began_at=now)
        await self._registry.begin(deployed.name, begun(fresh, deployed.rolling, now))

    def _acted(self, deployed: Deployed, action: RolloutAction) -> Rollout:
        rolling, now = deployed.rolling, self._clock.now()
        if rolling is None or deployed.candidate is None:
            raise RefusedError(f"no rollout of {deployed.name} is under way")
        id_ = deployed.candidate.revision.id
        match action:
            case RolloutAction.PROMOTE:
                if not self._world.is_ready(id_):
                    raise RefusedError(f"{id_} has no ready replica yet: all requests would wait for it")
                return self._ended(rolling, Phase.PROMOTED, "promoted by hand")
            case RolloutAction.ABORT:
                return self._ended(rolling, Phase.ABORTED, "aborted by hand")
            case RolloutAction.PAUSE if rolling.phase is Phase.RUNNING:
                return paused(rolling, now)
            case RolloutAction.RESUME if rolling.phase is Phase.PAUSED:
                return resumed(rolling, now)
            case _:
                raise RefusedError(f"the rollout of {id_} is {rolling.phase}: it cannot {action}")

    def _ended(self, rolling: Rollout, phase: Phase, why: str) -> Rollout:
        return ended(rolling, phase, self._clock.now(), phase.value, why)

    # --- parts ---

    async def _take_up(self, name: str) -> None:
        await self._rollouts.take_up(name)
        self._soon()
        self._publisher.announce()

    def _deployed(self, name: str) -> Deployed:
        deployed = self._registry.get(name)
        if deployed is None:
            raise UnknownFunctionError(name, tuple(each.name for each in self._registry.all()))
        return deployed

    def _revision(self, deployed: Deployed, text: str, where: str, faults: list[Fault]) -> RevisionRecord | None:
        """Returns a kept revision by id, number or tag; adds a fault and returns None if there is none."""
        numbers = self._registry.numbers(deployed.name)
        if text in deployed.tags:
            return numbers[deployed.tags[text]]
        digits = text.removeprefix(f"{deployed.name}-")
        found = numbers.get(int(digits)) if digits.isdecimal() else None
        if found is None:
            faults.append(Fault(where, text, f"a kept revision of {deployed.name}: {self._kept(deployed)}"))
        return found

    def _kept(self, deployed: Deployed) -> str:
        return ", ".join(each.revision.id for _, each in sorted(self._registry.numbers(deployed.name).items()))

    def __repr__(self) -> str:
        return f"<TrafficCommands of {self._world!r}>"


def _allowed(tag: str, function: str) -> str | None:
    """Returns the allowed values if this tag is not one of them, else None. A number or a revision's id would hide that
    revision."""
    try:
        TAG.read(tag)
    except UnreadableError:
        return TAG.allowed
    if tag.removeprefix(f"{function}-").isdecimal():
        return "no number and no id of a revision: those name the revision itself"
    if len(f"{tag}-{function}") > LABEL:
        return f"at most {LABEL - 1 - len(function)} characters: TAG-{function} is one part of a host's name"
    return None


def _plan(texts: Mapping[str, str], faults: list[Fault]) -> RolloutPlan | None:
    """Reads a plan from annotations without prefix, as in a manifest; adds faults and returns None if it cannot."""
    rows, values = {row.key: row for row in ROLLOUT}, {}
    before = len(faults)
    for key, text in texts.items():
        row = rows.get(key)
        if row is None:
            faults.append(Fault("plan", key, ", ".join(rows)))
            continue
        try:
            values[row.field.removeprefix("rollout.")] = row.kind.read(text)
        except UnreadableError:
            faults.append(Fault(key, text, allowed_for(row.kind, text)))
    if len(faults) > before:
        return None
    plan: RolloutPlan = assemble(RolloutPlan(), values)
    ways = sum((bool(plan.canary_steps), plan.shadow_percent > 0, plan.duration_s > 0))
    if ways != 1 or ("canary-window" in texts and not plan.canary_steps):
        allowed = "exactly one of canary-steps (with canary-window), rollout-duration above 0s, shadow-percent above 0"
        given = ", ".join(f"{key} {text}" for key, text in texts.items())
        faults.append(Fault("plan", given or "nothing", allowed))
        return None
    return plan
