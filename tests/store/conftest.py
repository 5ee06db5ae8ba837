"""Every store keeps the same promises: the suite runs over each opener listed here."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidegate.store.embedded import EmbeddedStore
from tidegate.store.records import Store

Opener = Callable[[], Awaitable[Store]]


@pytest.fixture(params=["embedded"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the store, each time the same one: a second call is a restart."""

    async def embedded() -> Store:
        return await EmbeddedStore.open(tmp_path / "state.db")

    return {"embedded": embedded}[request.param]
