"""Explanations: why a function has its number of replicas, in words, with the decisions behind it."""

from collections.abc import Sequence

from tidegate.autoscaler.autoscaler import Autoscaler
from tidegate.autoscaler.profiles.admission import Assessment
from tidegate.control.api import describe, pipelines
from tidegate.control.api.summary import summary
from tidegate.control.state.registry import Deployed
from tidegate.control.views.functions import ExplainView, FunctionView
from tidegate.deploy.backend import Backend


class Explanations:
    """Explains functions and pipelines from the autoscaler's decisions and the backend's replicas."""

    def __init__(self, autoscaler: Autoscaler, backend: Backend) -> None:
        self._autoscaler = autoscaler
        self._backend = backend

    def of_pipeline(self, view: FunctionView, stages: Sequence[FunctionView]) -> ExplainView:
        """Returns the explanation of a pipeline: it has no replicas, its stages have."""
        lines = pipelines.sentences(view, stages)
        text = "\n".join(f"tidegate explain {each.name}" for each in stages)
        return ExplainView(function=view.name, text=text, decisions=(), summary=lines)

    def of_function(
        self, deployed: Deployed, view: FunctionView, assessed: Assessment, last: int, disbelief: str | None
    ) -> ExplainView:
        """Returns the explanation of a function with its last decisions. ``disbelief``: why its latest sample that the
        predictor did not believe was not."""
        words = self._autoscaler.explain(view.name, last)
        usable = self._backend.room(deployed.current.revision)
        emulated = sorted(each.name for each in self._backend.devices() if each.is_emulated and each.name in usable)
        if words and emulated:
            words.append(f"emulated, their service times come from a profile: {', '.join(emulated)}")
        if words and (rolling := deployed.rolling) is not None and deployed.candidate is not None:
            subject = f"{rolling.strategy.value} rollout of {deployed.candidate.revision.id}"
            words.append(f"{subject}, {rolling.phase.value} at {rolling.percent:g} %: {rolling.verdict}")
        groups = [group for revision in view.revisions for group in revision.groups if group.idle_states is not None]
        words += [f"replicas on {each.accelerator}: {each.idle_states}" for each in groups]
        predictions = describe.prediction_lines(assessed)
        if disbelief is not None:
            predictions.append(f"predictor: {disbelief}")
        failures = describe.failure_lines(view)
        users = self._autoscaler.pipelines_of(view.name)
        parts = [line for user in users if (line := pipelines.part_of(user, view.name, self._autoscaler.budgets(user)))]
        words += [*predictions, *failures]
        return ExplainView(
            function=view.name,
            text="\n".join(words) if words else f"nothing was decided about {view.name} yet",
            decisions=tuple(self._autoscaler.decisions(view.name, last)),
            summary=(*summary(view, failures), *parts, *predictions),
        )

    def __repr__(self) -> str:
        return f"<Explanations of {self._autoscaler!r}>"
