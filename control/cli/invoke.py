"""``tidegate invoke``: one request to a function through the front door."""

import codecs
import json as jsons
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.control.cli.cluster.elsewhere import Files, in_control_process
from tidegate.control.cli.common import (
    EXIT_FAILED,
    JsonOption,
    StateOption,
    connect,
    escaped,
    fail,
    guarded,
    print_json,
    say,
)
from tidegate.control.cli.develop.activity import activity
from tidegate.control.cli.job import print_new_job, read_headers
from tidegate.control.cli.show import NameArgument

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate

FILES: Final = Files(
    read={"data": "@", "file": "", "tensor": "[^=]*=@"},
    refused={"cacert": "the control process trusts the certificate of its gateway"},
)


def invoke(
    name: NameArgument,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="JSON body; @FILE reads a file, @- standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="File with the body, of any type.")] = None,
    path: Annotated[
        str | None, typer.Option(help="Path on the model server (default: V2 inference for V2 functions, else /).")
    ] = None,
    v2: Annotated[bool, typer.Option("--v2", help="Use tritonclient; pass tensors with --input.")] = False,
    tensor: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME[:TYPE]=JSON", help="A V2 tensor: a JSON array, or @FILE for raw bytes."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME: VALUE", help="A request header.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.", min=0.001)] = 310.0,
    cacert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also trust the CA certificates in FILE (PEM)."),
    ] = None,
    is_async: Annotated[
        bool, typer.Option("--async", help="Do not wait: print the id of the job (`tidegate job ID`).")
    ] = False,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Send one request to a function and print the answer."""
    headers = read_headers(header or [])
    _check(data, file, path, is_async=is_async, v2=v2, has_tensors=bool(tensor))
    with connect(state, authorities=cacert) as tidegate:
        if v2:
            _invoke_v2(tidegate, name, tensor or [], headers, timeout, json)
            return
        body = _body(data, file)
        target = path or _default_path(tidegate, name)
        if is_async:
            print_new_job(tidegate, name, f"/{target.lstrip('/')}", body, headers, json=json)
            return
        _invoke_http(tidegate, name, target, body, headers, timeout, json)


def _check(
    data: str | None, file: Path | None, path: str | None, *, is_async: bool, v2: bool, has_tensors: bool
) -> None:
    """Raises BadParameter for options of which one would do nothing."""
    if data is not None and file is not None:
        raise typer.BadParameter("--data and --file exclude each other")
    if has_tensors and not v2:
        raise typer.BadParameter("--input needs --v2")
    if v2 and is_async:
        raise typer.BadParameter("--async does not apply to --v2: tritonclient waits for its answers")
    given = {"--data": data, "--file": file, "--path": path}
    if v2 and (unused := [flag for flag, value in given.items() if value is not None]):
        raise typer.BadParameter(f"{', '.join(unused)}: not with --v2, which sends the tensors of --input")


def register(app: typer.Typer) -> None:
    app.command("invoke")(guarded(in_control_process(invoke, FILES)))


def _invoke_http(
    tidegate: "Tidegate", name: str, path: str, body: bytes, headers: dict[str, str], timeout: float, json: bool
) -> None:
    import httpx

    sent = {"content-type": "application/json"} | headers
    url = f"{tidegate.gateway}/functions/{name}/{path.lstrip('/')}"
    try:
        with httpx.Client(timeout=timeout, trust_env=False, verify=tidegate.trust()) as client:
            with activity(f"{name} computes", is_silent=json):
                answer = client.send(client.build_request("POST", url, content=body, headers=sent), stream=True)
                is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
                content = b"" if is_stream and not json else answer.read()
            if not json:
                content = _print_pieces(answer.iter_bytes() if is_stream else (content,))
    except httpx.HTTPError as error:
        fail(f"{url}: {str(error) or type(error).__name__}")
    if json:
        print_json({"status": answer.status_code, "headers": dict(answer.headers), "body": answer.text})
    else:
        timing = answer.headers.get("server-timing")
        say(f"status {answer.status_code}" + (f", {timing}" if timing else ""))
    if is_stream and (why := stream_error(content)) is not None:
        fail(f"the stream ended with an error: {why}")
    if not answer.is_success:
        raise typer.Exit(EXIT_FAILED)


def _print_pieces(pieces: Iterable[bytes]) -> bytes:
    """Prints an answer piece by piece as it comes, and returns it; on a terminal with control characters escaped."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    whole = bytearray()
    sys.stdout.flush()
    try:
        for piece in pieces:
            whole += piece
            shown = escaped(decoder.decode(piece).replace("\r\n", "\n")).encode() if sys.stdout.isatty() else piece
            sys.stdout.buffer.write(shown)
            sys.stdout.buffer.flush()
    finally:
        sys.stdout.buffer.write(b"" if whole.endswith(b"\n") else b"\n")
        sys.stdout.buffer.flush()
    return bytes(whole)


def stream_error(body: bytes) -> str | None:
    """Returns the words of the error that an event stream reports after its status was sent: an event named ``error``,
    or JSON data with a member ``error`` (OpenAI). None without one."""
    for block in re.split(r"\r\n\r\n|\n\n|\r\r", body.decode(errors="replace")):
        fields = [line.partition(":") for line in block.splitlines()]
        data = "\n".join(value.removeprefix(" ") for key, _, value in fields if key == "data")
        is_named = any(key == "event" and value.strip() == "error" for key, _, value in fields)
        try:
            content = jsons.loads(data)
        except ValueError:
            content = None
        error = content.get("error") if isinstance(content, dict) else None
        if error or is_named:
            message = error.get("message", error) if isinstance(error, dict) else error
            return str(message or data)
    return None


def _invoke_v2(
    tidegate: "Tidegate", name: str, tensors: list[str], headers: dict[str, str], timeout: float, json: bool
) -> None:
    try:
        import numpy as np
        import tritonclient.http as triton
    except ImportError:
        fail("--v2 needs tritonclient: pip install 'tidegate[triton]'")
    model = tidegate.function(name).models[0]
    scheme, _, address = tidegate.gateway.partition("://")
    with triton.InferenceServerClient(
        f"{address}/functions/{name}",
        connection_timeout=timeout,
        network_timeout=timeout,
        **(_triton_trust(tidegate) if scheme == "https" else {}),
    ) as client:
        declared: list[dict[str, Any]] = []
        try:
            declared = client.get_model_metadata(model, headers=headers).get("inputs") or []
            inputs = [_tensor(triton, np, text, declared) for text in tensors]
            result = client.infer(model, inputs, headers=headers)
        except triton.InferenceServerException as error:
            why = "" if declared or tensors else "; the model declares no inputs: give them with --input NAME=JSON"
            fail(f"{error}{why}")
    outputs = {each["name"]: result.as_numpy(each["name"]) for each in result.get_response()["outputs"]}
    if json:
        print_json({key: value.tolist() for key, value in outputs.items()})
    else:
        for key, value in outputs.items():
            print(f"{key} {value.dtype}{list(value.shape)}\n{np.array2string(value, threshold=40)}")


def _triton_trust(tidegate: "Tidegate") -> dict[str, Any]:
    """Returns a factory of TLS contexts for tritonclient, which runs on gevent and needs gevent's context class."""
    from gevent.ssl import SSLContext

    context = tidegate.trust(SSLContext)
    return {"ssl": True, "ssl_context_factory": lambda **_: context, "insecure": not context.check_hostname}


def _tensor(triton: Any, np: Any, text: str, declared: list[dict[str, Any]]) -> Any:
    """Builds one input tensor from ``NAME=JSON`` or ``NAME=@FILE``, with the type and shape that the model declares.

    ``NAME:TYPE`` sets the type. Without it and without a declared type, the type follows from the JSON values.
    """
    label, _, value = text.partition("=")
    name, datatype = _name_and_type(triton, label, declared)
    found = next((each for each in declared if each["name"] == name), None)
    if not value:
        raise typer.BadParameter(f"--input {text[:60]}: wanted NAME=JSON or NAME=@FILE")
    if found is None and declared:
        known = ", ".join(f"{each['name']} {each['datatype']}{each['shape']}" for each in declared)
        raise typer.BadParameter(f"--input {text[:60]}: the model has {known}")
    datatype = datatype or (found["datatype"] if found is not None else None)
    try:
        if value.startswith("@"):
            if datatype is None:
                raise ValueError(f"the model declares no inputs: say the type of raw bytes, as in {name}:UINT8={value}")
            shape = found["shape"] if found is not None else [-1, -1]
            array = _from_bytes(np, _read(value[1:]), triton.triton_to_np_dtype(datatype), shape)
        else:
            values = jsons.loads(value)
            datatype = datatype or _inferred(np, values, name)
            array = np.array(values, dtype=triton.triton_to_np_dtype(datatype))
    except (ValueError, TypeError, OverflowError) as error:
        raise typer.BadParameter(f"--input {name}: {error}") from error
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def _name_and_type(triton: Any, label: str, declared: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Splits ``x:FP32`` into the name ``x`` and its type. A colon that no type follows belongs to the name."""
    name, colon, datatype = label.rpartition(":")
    is_type = colon and name and triton.triton_to_np_dtype(datatype) is not None
    if is_type and all(each["name"] != label for each in declared):
        return name, datatype
    return label, None


_TYPES = {"b": "BOOL", "i": "INT64", "f": "FP64", "U": "BYTES"}


def _inferred(np: Any, values: Any, name: str) -> str:
    """Returns the V2 datatype of JSON values of one kind."""
    leaves = np.array(values, dtype=object).ravel().tolist()
    datatype = _TYPES.get(np.array(values).dtype.kind)
    is_mixed = any(isinstance(leaf, str) for leaf in leaves) and not all(isinstance(leaf, str) for leaf in leaves)
    if datatype is None or is_mixed:
        raise ValueError(
            f"the model declares no inputs, and these values tell no type; say one, as in {name}:FP32=[...]"
        )
    return datatype


def _from_bytes(np: Any, raw: bytes, dtype: Any, shape: list[int]) -> Any:
    """Returns raw bytes as one item of the declared shape, cut or padded with zeros if the item has a fixed size."""
    if dtype == np.object_:
        return np.array([raw], dtype=object).reshape([1] * max(1, len(shape)))
    item = list(shape[1:])
    if any(size < 0 for size in item):
        return np.frombuffer(raw, dtype=dtype).reshape(1, -1)
    wanted = int(np.prod(item)) * np.dtype(dtype).itemsize if item else np.dtype(dtype).itemsize
    return np.frombuffer(raw[:wanted].ljust(wanted, b"\0"), dtype=dtype).reshape([1, *item])


def _body(data: str | None, file: Path | None) -> bytes:
    if file is not None:
        return _read(str(file))
    if data is None:
        return b""
    return _read(data[1:]) if data.startswith("@") else data.encode()


def _read(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{name}: {error.strerror}") from error


def _default_path(tidegate: "Tidegate", name: str) -> str:
    view = tidegate.function(name)
    return f"/v2/models/{view.models[0]}/infer" if view.protocol == "v2" else "/"
