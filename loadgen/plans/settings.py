"""Settings of compared policies: ``--set KEY=VALUE`` of the command line."""

from collections.abc import Sequence

from tidegate.manifest.annotations import PARAMETER_PREFIX, PARAMETERS, PREFIX
from tidegate.schema.rows import by_spelling


def settings_for(policy: str, compared: Sequence[str], given: Sequence[str]) -> list[str]:
    """Returns the settings for one of the compared policies. A parameter applies to each policy that has it; one that
    no policy has stays in the list and becomes a fault."""
    return [text for text in given if _has(policy, text) or not any(_has(each, text) for each in compared)]


def _has(policy: str, setting: str) -> bool:
    """Whether a policy has the parameter that is set; settings that are no parameters apply to all."""
    key = setting.partition("=")[0].strip().removeprefix(PREFIX)
    is_parameter = key.startswith(PARAMETER_PREFIX)
    return not is_parameter or key.removeprefix(PARAMETER_PREFIX) in by_spelling(PARAMETERS.get(policy, ()))
