"""Pipelines: the stages that a request runs through, each a function of its own."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a pipeline."""

    function: str
    path: str | None = None
    """Target of its requests. None: of a V2 function the inference of its first model, else ``/``."""
    inputs: tuple[tuple[str, str], ...] = ()
    """Pairs of an input and the output of the stage before that fills it. Empty: each output fills the input of its own
    name. Between V2 functions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRoute:
    """The stages of one revision of a pipeline, in their order."""

    stages: tuple[Stage, ...]
    body_bytes: int
    """Maximum bytes of a request's body, and of an answer that becomes the next stage's request."""
