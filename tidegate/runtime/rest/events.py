"""Answers of a stream as server-sent events."""

import contextlib
from collections.abc import AsyncGenerator, Callable

from tidegate.aio.admin.endpoint import StreamResponse
from tidegate.runtime.errors import RequestError
from tidegate.runtime.execute.model import Outputs
from tidegate.runtime.protocols.generate import event
from tidegate.runtime.service import Refusal, shortened, status_of


async def events(
    answers: AsyncGenerator[Outputs, None],
    render: Callable[[Outputs], bytes],
    failure: Callable[[int, str], bytes],
    last: bytes = b"",
) -> StreamResponse:
    """Returns the answers as an event stream, which begins with the first answer.

    A failure before it is raised (Refusal, RequestError), so that it has a status of its own. ``failure``, given status
    and message, makes the last event of a stream that breaks off later. ``last`` are the bytes after a whole stream.
    """
    first = b""
    async for outputs in answers:
        try:
            first = event(render(outputs))
        except BaseException:
            await answers.aclose()
            raise
        break

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            async with contextlib.aclosing(answers):
                if first:
                    yield first
                async for outputs in answers:
                    yield event(render(outputs))
            if last:
                yield last
        except Refusal as refusal:
            yield event(failure(refusal.status, shortened(refusal.message)))
        except RequestError as error:
            yield event(failure(status_of(error), shortened(error.message)))

    return StreamResponse(pieces(), content_type="text/event-stream", headers=(("Cache-Control", "no-cache"),))
