"""Traffic as people steer it: splits by hand, rollback, rollouts. Checks what is asked, all faults at once."""

from collections.abc import Mapping
from typing import Final

from tidegate.control.api.service import RefusedError, UnknownFunctionError
from tidegate.control.rounds.round import Round
from tidegate.control.state.registry import Deployed, Registry, RevisionRecord
from tidegate.control.views.views import (
    RollbackRequest,
    RolloutAction,
    RolloutRequest,
    RolloutView,
    ShadowView,
    SharePart,
    SplitRequest,
    SplitView,
    WindowView,
)
from tidegate.errors import Fault, InvalidInputError
from tidegate.histogram import quantile
from tidegate.manifest.annotations import ROLLOUT
from tidegate.records.gateway_sample import ShadowSeen
from tidegate.records.rollout import Phase, Rollout, RolloutPlan, Strategy
from tidegate.schema.rows import NAME, Text, assemble
from tidegate.schema.units import UnreadableError

SUM: Final = 100.0
SUM_TOLERANCE: Final = 0.005
TAG: Final = Text(NAME, "a DNS label: 1 to 63 of a-z, 0-9 and -, neither end a -")
LABEL: Final = 63
"""Most characters of one part of a host's name."""


class Steering:
    """Carries out what people ask of a function's traffic."""

    def __init__(self, world: Round) -> None:
        self._round = world

    @property
    def _registry(self) -> Registry:
        return self._round.registry

    # --- splits by hand ---

    def split(self, name: str) -> SplitView:
        deployed = self._deployed(name)
        parts = tuple(
            SharePart(
                revision=each.id,
                percent=each.percent,
                tags=each.tags,
                shadow_percent=each.shadow_percent,
                ready=self._round.is_ready(each.id),
            )
            for each in sorted(self._round.tracked(name), key=lambda each: -each.percent)
        )
        kept = tuple(each.revision.id for each in self._registry.numbers(name).values())
        candidate = None if deployed.candidate is None else deployed.candidate.revision.id
        return SplitView(
            function=name,
            is_pinned=bool(deployed.split),
            parts=parts,
            kept=kept,
            candidate=candidate,
            is_returning=deployed.is_returning,
        )

    async def set_split(self, name: str, request: SplitRequest) -> SplitView:
        """Percents and tags by hand. Raises InvalidInputError, StoreError."""
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
                tags[tag] = record.number
        if request.follow and request.split:
            faults.append(Fault("follow", "true", "either a split or to follow the newest revision"))
        if not (request.split or request.follow or request.tags or request.untag):
            faults.append(Fault("request", "nothing", "a split, tags, or to follow the newest revision"))
        if faults:
            raise InvalidInputError("traffic", faults)
        now = self._round.clock.now()
        if request.follow:
            await self._registry.follow(name, now)
        if split is not None or tags != deployed.tags:
            await self._registry.split(name, split, tags, now)
        await self._round.rollouts.taken_up(name)
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
                split[record.number] = percent
        total = sum(request.split.values())
        if abs(total - SUM) > SUM_TOLERANCE:
            faults.append(Fault("split", f"a sum of {total:g}", "percents that add up to 100"))
        return {number: percent for number, percent in split.items() if percent > 0}

    # --- rollback ---

    async def rollback(self, name: str, request: RollbackRequest) -> SplitView:
        """Back to an earlier revision. Raises InvalidInputError, RefusedError, StoreError."""
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
        rolling = deployed.rolling
        over = None if rolling is None else self._ended(rolling, Phase.ABORTED, "rolled back by hand")
        await self._registry.give_back(name, record.number, self._round.clock.now(), over)
        if over is not None:
            self._round.rollouts.rolled(deployed, over)
        await self._round.rollouts.taken_up(name)
        return self.split(name)

    # --- rollouts ---

    def rollout(self, name: str) -> RolloutView:
        """The rollout under way, or the last one. Raises RefusedError where there was none."""
        deployed = self._deployed(name)
        if deployed.rollout is None:
            raise RefusedError(f"no revision of {name} has been rolled out step by step yet")
        return view_of(self._round, deployed, deployed.rollout)

    async def change_rollout(self, name: str, request: RolloutRequest) -> RolloutView:
        """Raises InvalidInputError, RefusedError, StoreError."""
        deployed = self._deployed(name)
        if request.action is RolloutAction.BEGIN:
            await self._begin(deployed, request)
        else:
            after = self._acted(deployed, request.action)
            await self._registry.steer(name, after)
            self._round.rollouts.rolled(deployed, after)
        await self._round.rollouts.taken_up(name)
        return self.rollout(name)

    async def _begin(self, deployed: Deployed, request: RolloutRequest) -> None:
        from tidegate.traffic.stages import begun

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
            told = "a function whose traffic one revision has: `tidegate traffic NAME --to REVISION=100` first"
            faults.append(Fault("function", f"{deployed.name}, split by hand", told))
        if faults or named is None or plan is None:
            raise InvalidInputError("rollout", faults)
        now = self._round.clock.now()
        fresh = Rollout(candidate=named.number, base=deployed.current.number, plan=plan, began_at=now)
        await self._registry.begin(deployed.name, begun(fresh, deployed.rolling, now))

    def _acted(self, deployed: Deployed, action: RolloutAction) -> Rollout:
        from tidegate.traffic.stages import paused, resumed

        rolling, now = deployed.rolling, self._round.clock.now()
        if rolling is None or deployed.candidate is None:
            raise RefusedError(f"no rollout of {deployed.name} is under way")
        id_ = deployed.candidate.revision.id
        match action:
            case RolloutAction.PROMOTE:
                if not self._round.is_ready(id_):
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
        from tidegate.traffic.stages import ended

        return ended(rolling, phase, self._round.clock.now(), phase.value, why)

    # --- small things ---

    def _deployed(self, name: str) -> Deployed:
        deployed = self._registry.get(name)
        if deployed is None:
            raise UnknownFunctionError(name, tuple(each.name for each in self._registry.all()))
        return deployed

    def _revision(self, deployed: Deployed, text: str, where: str, faults: list[Fault]) -> RevisionRecord | None:
        """A kept revision by id, number or tag."""
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
        return f"<Steering of {self._round!r}>"


def _allowed(tag: str, function: str) -> str | None:
    """What a tag may be where this one may not; None: it may. A number or a revision's id would hide that revision."""
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
    """A plan from annotations without prefix, as a manifest gives them."""
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
            faults.append(Fault(key, text, row.kind.allowed))
    if len(faults) > before:
        return None
    plan: RolloutPlan = assemble(RolloutPlan(), values)
    ways = sum((bool(plan.canary_steps), plan.shadow_percent > 0, plan.duration_s > 0))
    if ways != 1 or ("canary-window" in texts and not plan.canary_steps):
        told = "exactly one of canary-steps (with canary-window), rollout-duration above 0s, shadow-percent above 0"
        given = ", ".join(f"{key} {text}" for key, text in texts.items())
        faults.append(Fault("plan", given or "nothing", told))
        return None
    return plan


def view_of(world: Round, deployed: Deployed, rollout: Rollout) -> RolloutView:
    """A rollout for people."""
    id_ = f"{deployed.name}-{rollout.candidate:05d}"
    now, tallies = world.clock.now(), world.rollouts.tallies(deployed.name)
    left_s = max(0.0, rollout.since + rollout.plan.canary_window_s - now)
    is_judged = rollout.strategy is Strategy.CANARY and rollout.phase is Phase.RUNNING
    tracked = world.find(id_)
    new, old = (None, None) if tallies is None else (WindowView.of(tallies[0]), WindowView.of(tallies[1]))
    shadow = world.meter.shadow(id_)
    return RolloutView(
        function=deployed.name,
        strategy=rollout.strategy,
        phase=rollout.phase,
        candidate=id_,
        base=f"{deployed.name}-{rollout.base:05d}",
        percent=0.0 if tracked is None else tracked.percent,
        steps=rollout.plan.canary_steps,
        step=rollout.step + 1 if rollout.plan.canary_steps else 0,
        window_s=rollout.plan.canary_window_s if rollout.plan.canary_steps else None,
        window_left_s=left_s if is_judged else None,
        duration_s=rollout.plan.duration_s or None,
        shadow_percent=rollout.plan.shadow_percent,
        verdict=rollout.verdict,
        new=new if rollout.strategy is Strategy.CANARY else None,
        old=old if rollout.strategy is Strategy.CANARY else None,
        shadow=_shadow(shadow) if rollout.strategy is Strategy.SHADOW else None,
        began_at=rollout.began_at,
        events=rollout.events,
    )


def _shadow(seen: ShadowSeen) -> ShadowView:
    return ShadowView(
        requests=seen.requests,
        skipped=seen.skipped,
        failed=seen.failed,
        status_differs=seen.status_differs,
        output_differs=seen.output_differs,
        p50_s=quantile(seen.latency, 0.5),
        p98_s=quantile(seen.latency, 0.98),
        served_p50_s=quantile(seen.served_latency, 0.5),
        served_p98_s=quantile(seen.served_latency, 0.98),
    )
