"""A name in a store that several use belongs to one control process at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.state import ownership
from tidegate.control.state.notices import Faults
from tidegate.control.state.ownership import GONE_S, KEY, Belonging, OwnedError, Ownership
from tidegate.store.embedded import EmbeddedStore

NOW = 1000.0


def with_store(folder: Path, run: Callable[[EmbeddedStore], Awaitable[None]]) -> None:
    async def opened() -> None:
        store = await EmbeddedStore.open(folder / "store.db")
        try:
            await run(store)
        finally:
            await store.close()

    asyncio.run(opened())


def test_a_living_owner_is_not_pushed_aside(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        first, second = (Ownership(store, name, Faults()) for name in ("one", "two"))
        await first.claim(NOW)
        with pytest.raises(OwnedError, match="has this name, and lives"):
            await second.claim(NOW + GONE_S - 1)
        await first.beat(NOW + GONE_S)
        with pytest.raises(OwnedError):
            await second.claim(NOW + 2 * GONE_S - 1)
        await first.release()
        await second.claim(NOW + 2 * GONE_S - 1)

    with_store(tmp_path, run)


def test_another_life_of_the_same_directory_is_the_same_owner(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        await Ownership(store, "one", Faults()).claim(NOW)
        again = Ownership(store, "one", Faults())
        await again.claim(NOW + 1)
        await again.release()
        assert await store.get(KEY) is None

    with_store(tmp_path, run)


def test_one_that_was_taken_for_gone_tells_and_does_not_take_the_name_back(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        faults = Faults()
        asleep, other = Ownership(store, "one", faults), Ownership(store, "two", Faults())
        await asleep.claim(NOW)
        await other.claim(NOW + GONE_S)
        for later in (1, 2):
            await asleep.beat(NOW + GONE_S + later)
        (fault,) = faults.texts()
        assert "has taken this name" in fault
        await other.beat(NOW + GONE_S + 3)
        await asleep.release()
        assert await store.get(KEY) is not None, "it is the other one's"

    with_store(tmp_path, run)


def test_a_store_that_lost_the_record_gets_it_again(tmp_path: Path) -> None:
    async def run(store: EmbeddedStore) -> None:
        faults = Faults()
        owner = Ownership(store, "one", faults)
        await owner.claim(NOW)
        await store.delete(KEY)
        for later in (1, 2):
            await owner.beat(NOW + later)
        assert await store.get(KEY) is not None
        await store.put(KEY, b"garbage")
        for later in (3, 4):
            await owner.beat(NOW + later)
        with pytest.raises(OwnedError):
            await Ownership(store, "two", Faults()).claim(NOW + 5)
        assert faults.texts() == ()

    with_store(tmp_path, run)


def test_a_store_that_failed_is_tried_each_second_and_its_fault_passes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "RETRY_S", 0.0)  # the other wait is longer than this test

    async def run(store: EmbeddedStore) -> None:
        owner = Ownership(store, "one", Faults())
        await owner.claim(NOW)
        store._fault = "the disk is full"
        beating = TaskOwner("test")
        beating.spawn(owner.run(lambda: NOW + 1), name="owner")
        for _ in range(1000):
            if store.fault is None:
                break
            await asyncio.sleep(0.001)
        await beating.close()
        assert store.fault is None

    with_store(tmp_path, run)


def test_records_of_a_deployment_on_a_cluster_are_never_taken_by_another_one(tmp_path: Path) -> None:
    """Its processes follow each other by their election, and one that is away is no reason to run its functions."""
    ours = Belonging(place="namespace blue", marks=("token-1", "lease-1"))
    theirs = Belonging(place="namespace green", marks=("token-2", "lease-2"))

    async def run(store: EmbeddedStore) -> None:
        first = Ownership(store, "one", Faults())
        await first.claim(NOW, of=ours)
        await Ownership(store, "two", Faults()).claim(NOW + 1, of=ours)
        await store.delete(KEY)
        with pytest.raises(OwnedError, match="of the deployment in namespace blue; choose another name"):
            await Ownership(store, "three", Faults()).claim(NOW + 100 * GONE_S, of=theirs)
        assert await store.get(KEY) is None, "nothing was written"

    with_store(tmp_path, run)


def test_a_deployment_is_known_by_what_it_has_kept(tmp_path: Path) -> None:
    """Its token may be replaced, and its Lease deleted, one after the other."""

    async def run(store: EmbeddedStore) -> None:
        marks = [("token-1", "lease-1"), ("token-2", "lease-1"), ("token-2", "lease-2")]
        for number, each in enumerate(marks):
            await Ownership(store, "one", Faults()).claim(NOW + number, of=Belonging(place="here", marks=each))
        with pytest.raises(OwnedError):
            await Ownership(store, "one", Faults()).claim(NOW + 9, of=Belonging(place="here", marks=marks[0]))

    with_store(tmp_path, run)


def test_records_of_a_deployment_on_a_cluster_are_not_taken_by_one_on_a_machine(tmp_path: Path) -> None:
    """Whether the cluster's control process lives, has ended, or was never seen to end."""
    ours = Belonging(place="namespace blue", marks=("token-1", "lease-1"))

    async def run(store: EmbeddedStore) -> None:
        await Ownership(store, "one", Faults()).claim(NOW, of=ours)
        before = await store.get(KEY)
        for later in (1, 100 * GONE_S):
            with pytest.raises(OwnedError, match="of the deployment in namespace blue; choose another name with"):
                await Ownership(store, "two", Faults()).claim(NOW + later)
        assert await store.get(KEY) == before, "nothing was written"
        await store.delete(KEY)
        with pytest.raises(OwnedError):
            await Ownership(store, "one", Faults()).claim(NOW + 1)

    with_store(tmp_path, run)


def test_a_cluster_does_not_push_aside_the_living_owner_on_a_machine(tmp_path: Path) -> None:
    """There was no election. The records that it leaves may be taken."""
    ours = Belonging(place="namespace blue", marks=("token-1", "lease-1"))

    async def run(store: EmbeddedStore) -> None:
        machine = Ownership(store, "one", Faults())
        await machine.claim(NOW)
        with pytest.raises(OwnedError, match="has this name, and lives"):
            await Ownership(store, "two", Faults()).claim(NOW + 1, of=ours)
        await machine.beat(NOW + 2)
        await machine.release()
        await Ownership(store, "two", Faults()).claim(NOW + 3, of=ours)

    with_store(tmp_path, run)
