"""The ticker: each has its turn, and no failure of one stops it."""

import asyncio

from tidegate.aio.loop.services import LoopServices


def test_each_sweep_gets_the_time_until_it_is_removed() -> None:
    async def main() -> None:
        services = LoopServices(asyncio.get_running_loop())
        seen: list[tuple[str, float]] = []
        services.add(lambda now: seen.append(("a", now)))
        remove = services.add(lambda now: seen.append(("b", now)))
        services.tick(1.0)
        remove()
        remove()
        services.tick(2.0)
        assert seen == [("a", 1.0), ("b", 1.0), ("a", 2.0)]
        assert services.now == 2.0
        assert services.date.endswith(b" GMT")
        assert len(services.date) == 29
        services.close()

    asyncio.run(main())


def test_a_failing_sweep_is_reported_and_the_others_still_run() -> None:
    async def main() -> None:
        reported: list[str] = []
        services = LoopServices(
            asyncio.get_running_loop(), report=lambda name, error: reported.append(f"{name}: {error}")
        )
        seen: list[float] = []

        def fail(now: float) -> None:
            raise ValueError("broken")

        services.add(fail)
        services.add(seen.append)
        services.tick(1.0)
        services.tick(2.0)
        assert seen == [1.0, 2.0]
        assert reported == ["sweeper: broken"] * 2
        services.close()

    asyncio.run(main())


def test_a_sweep_may_add_and_remove_while_it_runs() -> None:
    async def main() -> None:
        services = LoopServices(asyncio.get_running_loop())
        seen: list[str] = []

        def once(now: float) -> None:
            seen.append("once")
            remove()
            services.add(lambda now: seen.append("new"))

        remove = services.add(once)
        services.tick(1.0)
        services.tick(2.0)
        assert seen == ["once", "new"]
        services.close()

    asyncio.run(main())
