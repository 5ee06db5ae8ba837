"""KServe's V1 inference: ``POST /v1/models/NAME:predict``."""

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime.execute.model import Outputs
from tidegate.runtime.protocols import v1
from tidegate.runtime.protocols import v2 as protocol
from tidegate.runtime.protocols.bodies import decompress
from tidegate.runtime.protocols.v2 import InferRequest
from tidegate.runtime.service import ModelService, Refusal, shortened


async def answer(service: ModelService, request: Request, name: str) -> Response:
    """Answers a call. Raises RequestError for an unknown model, and cancellation."""
    service.check_name(name, "")

    def read() -> InferRequest:
        body = decompress(request.body, request.headers.get("content-encoding"), service.body_bytes)
        return v1.parse(body, service.spec_of(name))

    def render(inference: InferRequest, outputs: Outputs) -> Response:
        return Response(body=v1.render(inference, outputs))

    try:
        return await service.infer(name, read, render)
    except Refusal as refusal:
        return Response(refusal.status, protocol.error_body(shortened(refusal.message)))
