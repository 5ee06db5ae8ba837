"""Triton's generate extension: ``POST /v2/models/NAME/generate`` and ``/generate_stream`` (server-sent events)."""

import contextlib

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime.execute.model import Outputs
from tidegate.runtime.execute.streams import joined
from tidegate.runtime.protocols import generate
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.protocols.v2 import InferRequest
from tidegate.runtime.rest.events import events
from tidegate.runtime.service import AnyResponse, ModelService, Refusal, shortened


async def answer(service: ModelService, request: Request, name: str, method: str) -> AnyResponse:
    """Answers ``generate`` or ``generate_stream``. Raises RequestError, and cancellation."""
    try:
        return await _answer(service, request, name, method == "generate_stream")
    except Refusal as refusal:
        return Response(refusal.status, protocol.error_body(shortened(refusal.message)))


async def _answer(service: ModelService, request: Request, name: str, is_stream: bool) -> AnyResponse:
    spec = service.spec_of(name)
    parsed = generate.parse(decompress(request.body, request.headers.get("content-encoding"), service.body_bytes), spec)
    protocol.check_inputs(parsed, spec)

    def render(outputs: Outputs) -> bytes:
        return generate.render(name, parsed, outputs)

    def one(_: InferRequest, outputs: Outputs) -> bytes:
        return render(outputs)

    if not spec.streams:
        found = await service.infer(name, lambda: parsed, one)
    else:
        answers = service.stream(name, parsed.inputs, parsed.parameters)
        if is_stream:
            return await events(answers, render, lambda _, message: protocol.error_body(message))
        async with contextlib.aclosing(answers):
            found = render(joined([outputs async for outputs in answers]))
    if is_stream:
        return Response(body=generate.event(found), content_type="text/event-stream")
    return Response(body=found)
