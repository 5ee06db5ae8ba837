"""A model server for long exchanges: ``python stream_model.py PORT``.

``POST`` answers with its body and the header ``x-bytes``; ``GET /events?count=N&every=S`` is an event stream;
``GET /socket`` is a WebSocket that echoes.
"""

import asyncio
import sys

from aiohttp import WSMsgType, web


async def echo(request: web.Request) -> web.Response:
    body = await request.read()
    return web.Response(body=body, headers={"x-bytes": str(len(body))})


async def events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(int(request.query["count"])):
        await response.write(b"data: %d\n\n" % number)
        await asyncio.sleep(float(request.query["every"]))
    return response


async def socket(request: web.Request) -> web.WebSocketResponse:
    found = web.WebSocketResponse()
    await found.prepare(request)
    async for message in found:
        if message.type is WSMsgType.TEXT:
            await found.send_str(message.data)
    return found


def main() -> None:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_get("/events", events)
    app.router.add_get("/socket", socket)
    app.router.add_post("/{path:.*}", echo)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=lambda *_: None)


if __name__ == "__main__":
    main()
