"""Words that cost reports and counters of use share."""

from enum import StrEnum
from typing import Final

OTHER_TENANTS: Final = "(other)"
"""The tenants that count together because there are too many. No tenant has this name: names have no parentheses."""


class GroupBy(StrEnum):
    """What a row of a cost report stands for."""

    FUNCTION = "function"
    TENANT = "tenant"
    ACCELERATOR = "accelerator"
