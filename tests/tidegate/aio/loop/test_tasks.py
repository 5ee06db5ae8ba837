"""Tasks have a name, an owner and an end."""

import asyncio

from tidegate.aio.loop.tasks import TaskOwner, spawn


def test_closing_the_owner_cancels_and_awaits_its_tasks() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("forever")

    async def main() -> None:
        owner = TaskOwner("test")
        task = spawn(forever(), name="forever", owner=owner)
        assert task.get_name() == "test/forever"
        await asyncio.sleep(0)
        assert len(owner) == 1
        await owner.close()
        assert ended == ["forever"]
        assert len(owner) == 0
        await owner.close()

    asyncio.run(main())


def test_a_failure_is_reported_once_with_the_tasks_name() -> None:
    reported: list[tuple[str, str]] = []

    async def fail() -> None:
        raise ValueError("broken")

    async def main() -> None:
        owner = TaskOwner("test", lambda name, error: reported.append((name, str(error))))
        task = owner.spawn(fail(), name="fail")
        await asyncio.wait([task])
        await asyncio.sleep(0)
        await owner.close()

    asyncio.run(main())
    assert reported == [("test/fail", "broken")]


def test_a_task_may_close_its_own_owner() -> None:
    async def main() -> None:
        owner = TaskOwner("test")
        await owner.spawn(owner.close(), name="closer")

    asyncio.run(main())
