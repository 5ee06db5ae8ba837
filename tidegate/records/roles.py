"""The role of a revision, as the control process assigns it and its API shows it."""

from enum import StrEnum


class Role(StrEnum):
    """The role of a revision in its function."""

    SERVING = "serving"
    CANDIDATE = "candidate"
    """Takes over when it is ready, or as its rollout goes on."""
    RETIRED = "retired"
    """Drains to zero."""
