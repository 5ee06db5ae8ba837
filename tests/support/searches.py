"""How far searches of hypothesis go: a part of the profile's examples, 100 by default and 2,000 in the deep run."""

from typing import Any

from hypothesis import settings


def part(of_all: float, **more: Any) -> settings:
    """Settings of a search that takes long for each example. ``more``: other settings."""
    return settings(max_examples=round(settings().max_examples * of_all), **more)
