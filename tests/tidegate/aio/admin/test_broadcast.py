"""Lines to any number of listeners: first the present, then what comes; slow ones lose the oldest."""

import asyncio

from tidegate.aio.admin.broadcast import KEPT_LINES, Broadcast


def test_a_listener_hears_the_present_and_then_everything() -> None:
    async def main() -> None:
        speaker = Broadcast()
        speaker.publish(b"before\n")
        listening = speaker.listen(b"now\n")
        assert await anext(listening) == b"now\n"
        for number in range(3):
            speaker.publish(b"%d\n" % number)
        assert [await anext(listening) for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        assert len(speaker) == 1
        await listening.aclose()
        assert len(speaker) == 0

    asyncio.run(main())


def test_a_listener_that_does_not_read_loses_the_oldest() -> None:
    async def main() -> None:
        speaker = Broadcast()
        listening = speaker.listen(b"now\n")
        await anext(listening)
        for number in range(KEPT_LINES + 7):
            speaker.publish(b"%d\n" % number)
        assert await anext(listening) == b"7\n"
        await listening.aclose()

    asyncio.run(main())


def test_cancelling_a_listener_takes_it_off() -> None:
    async def main() -> None:
        speaker = Broadcast()

        async def listen() -> None:
            async for _ in speaker.listen():
                pass

        task = asyncio.get_running_loop().create_task(listen())
        await asyncio.sleep(0)
        assert len(speaker) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(speaker) == 0

    asyncio.run(main())
