"""A gRPC call of a pipeline: its message as the V2 request that its stages speak, their answer as its message. Pure.

Stages are called over HTTP. Raw contents become binary tensors, typed ones JSON, and the same the other way round: an
answer is typed if all of its tensors came as JSON and have a typed form, as the protocol allows one kind in a message.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from tidegate.gateway.pipelines import bodies
from tidegate.gateway.pipelines.bodies import (
    LAYOUTS,
    OpenedBody,
    StageBody,
    UnfitAnswerError,
    content_type_of,
    parsed,
    tensors,
)
from tidegate.gateway.pipelines.heads import field
from tidegate.gateway.routing.grpc_methods import Unreadable, inflated
from tidegate.wire.grpc.first_message import MESSAGE_HEAD, first_message_end
from tidegate.wire.grpc.messages import INFERENCE, MODEL_INFER_REQUEST, MODEL_INFER_RESPONSE
from tidegate.wire.grpc.protobuf import BYTES, Field, Message, ProtobufError
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.heads import CallHead

INFER: Final = f"/{INFERENCE.name}/ModelInfer".encode()
_RULES: Final = HeadRules(head_bytes=1 << 20, headers=10_000, target_bytes=1 << 20, trusted=True)
"""The call's own fields were within the limits, and those that no client may send are hidden."""
_INPUTS: Final = Message(MODEL_INFER_REQUEST.name, Field(5, "inputs", BYTES, repeated=True))
"""A ModelInferRequest of which only the inputs are looked at, undecoded."""
_CONTENTS: Final = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""The field of ``InferTensorContents`` for each datatype that has one."""
_BINARY: Final = "binary_data_size"
_CHOICES: Final = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
"""The field of ``InferParameter`` for each type that has one."""
_OF_THE_CALL: Final = frozenset({b"content-encoding", b"content-length", b"content-type", b"user-agent"})
"""Fields of a call, beside those of gRPC, that the same request over HTTP has of its own, or not at all."""
_CODES: Final = {404: grpc_fields.NOT_FOUND, 408: grpc_fields.DEADLINE_EXCEEDED}
"""The status of a call whose stage has answered so, where it is not that of Tidegate's own failures."""


class UnfitCallError(ValueError):
    """A call cannot become a request of a pipeline; the message states why."""


def head_of(head: CallHead, pipeline: str, body: StageBody) -> RequestHead:
    """Returns the head of the same request over HTTP, which has this body."""
    lines = [b"%b: %b" % pair for pair in head.fields() if not _is_of_the_call(pair[0])]
    lines.append(b"content-type: %b" % content_type_of(body))
    target = b"/v2/models/%b/infer" % quote(pipeline, safe="").encode()
    host = head.authority or b"localhost"
    text = b"POST %b HTTP/1.1\r\nhost: %b\r\n%b\r\n\r\n" % (target, host, b"\r\n".join(lines))
    found = parse_request(text, 0, _RULES)
    if not isinstance(found, RequestHead):
        raise UnfitCallError("its fields cannot be passed on over HTTP")
    return found


def _is_of_the_call(name: bytes) -> bool:
    return name.startswith(b"grpc-") or name in _OF_THE_CALL


def body_of(body: bytes, coding: bytes | None, most: int) -> StageBody:
    """Returns the V2 request in the only message of a call's body. ``coding``: its ``grpc-encoding``; ``most``: size of
    the message when decompressed. Raises UnfitCallError."""
    if len(body) != first_message_end(body) or len(body) < MESSAGE_HEAD:
        raise UnfitCallError("it takes one whole message")
    data = body[MESSAGE_HEAD:]
    if body[0]:
        plain = inflated(data, coding, most)
        if isinstance(plain, Unreadable):
            raise UnfitCallError(plain.why)
        data = plain
    try:
        fields = MODEL_INFER_REQUEST.decode(data)
    except ProtobufError as error:
        raise UnfitCallError(f"the request is no ModelInferRequest: {error}") from None
    return _request(fields)


def opened(body: bytes, coding: bytes | None, most: int, splits: bool) -> OpenedBody:
    """Returns the request in a call's body as its stages get it. ``splits``: as of ``bodies.opened``. Raises
    UnfitCallError."""
    return bodies.opened(body_of(body, coding, most), splits)


def typed_bytes(body: bytes) -> int:
    """Returns the bytes of a call's body that ``body_of`` reads value by value: its inputs with their typed contents,
    or all of a message that is compressed."""
    if len(body) < MESSAGE_HEAD or body[0]:
        return len(body)
    try:
        return sum(map(len, _INPUTS.decode(body[MESSAGE_HEAD:]).get("inputs", ())))
    except ProtobufError:
        return 0  # ``body_of`` will find that out.


def _request(fields: Mapping[str, Any]) -> StageBody:
    entries, raw = fields.get("inputs", []), fields.get("raw_input_contents", [])
    if raw and len(raw) != len(entries):
        raise UnfitCallError(f"raw_input_contents has {len(raw)} entries for {len(entries)} inputs")
    inputs = [_input(entry, raw[at] if raw else None) for at, entry in enumerate(entries)]
    document: dict[str, Any] = {"inputs": inputs}
    if fields.get("id"):
        document["id"] = fields["id"]
    parameters = _parameters(fields)
    if raw:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    if fields.get("outputs"):
        document["outputs"] = [
            {"name": each.get("name", ""), "parameters": _parameters(each) | ({"binary_data": True} if raw else {})}
            for each in fields["outputs"]
        ]
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        raise UnfitCallError("JSON has no infinite values and no NaN: send raw_input_contents") from None
    return StageBody(b"".join([text, *map(bytes, raw)]), len(text) if raw else None)


def _input(entry: Mapping[str, Any], raw: Sequence[int] | None) -> dict[str, Any]:
    name, datatype = entry.get("name", ""), entry.get("datatype", "")
    found: dict[str, Any] = {"name": name, "shape": [int(each) for each in entry.get("shape", [])]}
    found["datatype"] = datatype
    parameters = _parameters(entry)
    if raw is not None:
        parameters[_BINARY] = len(raw)
    else:
        elements = entry.get("contents", {}).get(_CONTENTS.get(datatype, ""), [])
        try:
            found["data"] = [bytes(each).decode() for each in elements] if datatype == "BYTES" else list(elements)
        except UnicodeDecodeError:
            raise UnfitCallError(f"input {name!r} has bytes that are no text: send raw_input_contents") from None
    if parameters:
        found["parameters"] = parameters
    return found


def _parameters(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a message, a tensor or an output; those without a value are left out."""
    given = entry.get("parameters", {}).items()
    return {key: value[choice] for key, value in given if (choice := value.get("parameter_choice")) is not None}


def message_of(body: StageBody, pipeline: str) -> bytes:
    """Returns the ModelInferResponse that a V2 answer becomes. Raises UnfitAnswerError."""
    found = tensors(body)
    outputs: list[dict[str, Any]] = []
    for name, (tensor, _) in found.found.items():
        shape = tensor.get("shape")
        if not isinstance(shape, list) or not all(type(each) is int and 0 <= each < 1 << 63 for each in shape):
            raise UnfitAnswerError(f"its output {name!r} has no shape")
        if not isinstance(tensor.get("datatype"), str):
            raise UnfitAnswerError(f"its output {name!r} has no datatype")
        output = {"name": name, "datatype": tensor["datatype"], "shape": shape}
        outputs.append(output | {"parameters": _choices(tensor.get("parameters"))})
    answer: dict[str, Any] = {"model_name": pipeline, "model_version": "1", "outputs": outputs}
    answer["parameters"] = _choices(found.parameters)
    if found.id is not None:
        answer["id"] = found.id
    parts = list(found.found.values())
    try:
        if any(_BINARY in tensor.get("parameters", {}) or tensor["datatype"] not in _CONTENTS for tensor, _ in parts):
            answer["raw_output_contents"] = [_raw(tensor, binary) for tensor, binary in parts]
        else:
            for output, (tensor, _) in zip(outputs, parts, strict=True):
                output["contents"] = {_CONTENTS[output["datatype"]]: _elements(tensor)}
        return MODEL_INFER_RESPONSE.encode(answer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnfitAnswerError(f"its outputs are not those of a V2 answer: {error}") from error


def _choices(parameters: object) -> dict[str, Any]:
    """Returns what JSON says as ``parameters`` as those of a message; values that it has no place for are left out."""
    given = parameters.items() if isinstance(parameters, dict) else ()
    return {
        key: {_CHOICES[type(value)]: value}
        for key, value in given
        if key != _BINARY and type(value) in _CHOICES and not (type(value) is int and not -(1 << 63) <= value < 1 << 63)
    }


def _elements(tensor: Mapping[str, Any]) -> list[Any]:
    """Returns the values of a tensor whose data is JSON: texts as bytes. Raises UnfitAnswerError if one is none of its
    datatype."""
    datatype, flat = tensor["datatype"], list(_flat(tensor["data"]))
    if datatype == "BYTES":
        if not all(isinstance(each, str) for each in flat):
            raise UnfitAnswerError(f"output {tensor['name']!r} has a value that is no text")
        return [each.encode() for each in flat]
    _packed(tensor, flat)
    return flat


def _packed(tensor: Mapping[str, Any], elements: Sequence[Any]) -> bytes:
    """Returns numbers in the form of binary tensors. Raises UnfitAnswerError if one is none of the datatype."""
    datatype = tensor["datatype"]
    try:
        if datatype == "BOOL" and not all(each in (True, False) for each in elements):
            raise ValueError("neither true nor false")
        return struct.pack(f"<{len(elements)}{LAYOUTS[datatype][1:]}", *elements)
    except (struct.error, OverflowError, ValueError) as error:
        raise UnfitAnswerError(f"output {tensor['name']!r} has a value that is no {datatype}: {error}") from error


def _raw(tensor: Mapping[str, Any], binary: bytes) -> bytes:
    """Returns a tensor's data in the form of binary tensors."""
    if _BINARY in tensor.get("parameters", {}):
        return binary
    elements = _elements(tensor)
    if tensor["datatype"] == "BYTES":
        return b"".join(struct.pack("<I", len(each)) + each for each in elements)
    return _packed(tensor, elements)


def _flat(value: Any) -> Iterable[Any]:
    """Yields the values in lists of lists, nested as deeply as they may be."""
    waiting = [iter([value])]
    while waiting:
        for each in waiting[-1]:
            if isinstance(each, list):
                waiting.append(iter(each))
                break
            yield each
        else:
            waiting.pop()


def error_of(status: int, block: bytes, body: bytes) -> str:
    """Returns the text of an error that a stage has answered."""
    try:
        document = parsed(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), str):
        text: str = document["error"]
        return text
    kind = field(block, b"content-type") or b""
    return body.decode("utf-8", "replace") if kind.startswith(b"text/") and body else f"a stage has answered {status}"


def code_of(status: int) -> int:
    """Returns the gRPC status of a call whose stage has answered with an HTTP status that is no success."""
    code = _CODES.get(status, grpc_fields.status_of(status))
    return grpc_fields.INVALID_ARGUMENT if code == grpc_fields.INTERNAL and 400 <= status < 500 else code
