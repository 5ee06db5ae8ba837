"""The graph of a pipeline's stages, as requests run through it. Pure."""

from tidegate.records.pipeline import REQUEST, PipelineRoute, Stage, before


class Graph:
    """The stages of one revision, each behind those whose answers it gets, and who needs which answer."""

    __slots__ = ("are_sure", "follows", "keeps_request", "route", "sources", "stages", "users", "waits")

    def __init__(self, route: PipelineRoute) -> None:
        self.route = route
        self.stages: tuple[Stage, ...] = route.stages
        self.waits = before(route.stages)
        """By stage: the stages that it follows."""
        self.sources = tuple(self._sources(at) for at in range(len(self.stages)))
        """By stage: the stages whose answers its request is made from; those that it follows, and those that its inputs
        name."""
        self.users = tuple(
            frozenset(other for other, found in enumerate(self.sources) if at in found)
            for at in range(len(self.stages))
        )
        self.follows = tuple(
            tuple(other for other, waits in enumerate(self.waits) if at in waits) for at in range(len(self.stages))
        )
        """By stage: those that follow it."""
        self.keeps_request = any(given.startswith(f"{REQUEST}.") for stage in self.stages for _, given in stage.inputs)
        """A stage behind the first reads the client's request."""
        sure: list[bool] = []
        for stage, waits in zip(self.stages, self.waits, strict=True):
            sure.append(stage.when is None and (not waits or any(sure[each] for each in waits)))
        self.are_sure = tuple(sure)
        """By stage: every request runs it, unless another one fails."""

    def _sources(self, at: int) -> frozenset[int]:
        known = {stage.function: index for index, stage in enumerate(self.stages[:at])}
        named = (given.partition(".")[0] for _, given in self.stages[at].inputs)
        return frozenset(self.waits[at]) | {known[name] for name in named if name in known}

    def is_last(self, at: int) -> bool:
        """Returns whether no stage follows."""
        return not self.follows[at]

    def __repr__(self) -> str:
        return f"<Graph {', '.join(stage.function for stage in self.stages)}>"
