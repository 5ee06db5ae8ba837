"""An example call of a function that works as it is pasted into a shell."""

import json
import shlex
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import httpx

from tidegate.control.state.directory import StateDirectory
from tidegate.deploy.local.records import RecordStore
from tidegate.loadgen.clients.bodies import Input, inputs_of, v2_json
from tidegate.schema.yaml_nodes import Faults, MapNode, load

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import FunctionView

PROBE_S: Final = 5.0
SHORT: Final = 600
"""Characters of a body that is printed as it is; a larger one is made by a line of Python."""
JSON: Final = "-H 'content-type: application/json'"


class _Probe:
    """Looks at the model server of one replica, past the front door: a look is no request of the function's traffic.
    Nothing is raised: what does not answer is unknown."""

    def __init__(self, tidegate: "Tidegate", view: "FunctionView") -> None:
        self.base = (view.path_url or tidegate.gateway).rstrip("/")
        """What the printed call begins with."""
        upstream = _upstream(Path(tidegate.status().state_directory), view)
        path = None if upstream is None else upstream.removeprefix("unix:")
        is_socket = upstream is not None and upstream.startswith("unix:")
        transport = httpx.HTTPTransport(uds=path if is_socket else None, verify=_no_tls())
        self._url = None if upstream is None else "http://model-server" if is_socket else f"http://{upstream}"
        self._client = httpx.Client(timeout=PROBE_S, trust_env=False, transport=transport)

    def get(self, path: str) -> tuple[int, Any]:
        """Returns (status, parsed answer); 0 without an answer, None for one that is no JSON."""
        if self._url is None:
            return 0, None
        try:
            answer = self._client.get(self._url + path)
        except httpx.HTTPError:
            return 0, None
        try:
            return answer.status_code, answer.json()
        except ValueError:
            return answer.status_code, None

    def close(self) -> None:
        self._client.close()


def _no_tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _upstream(state: Path, view: "FunctionView") -> str | None:
    """Returns the address of a ready replica's model server; None if there is none."""
    ready = {each.id for kept in view.revisions for each in kept.replicas if each.state == "ready"}
    records, _ = RecordStore(StateDirectory(state).processes).read_all()
    found = (each.replica.upstream for each in records if each.replica is not None and each.replica.id in ready)
    return next(found, None)


def _is_protected(tidegate: "Tidegate", view: "FunctionView") -> bool:
    """Returns whether its manifest requires a key or a token."""
    (document,) = load(tidegate.manifest(view.name).manifest, Faults("manifest"))
    spec = document.get("spec") if isinstance(document, MapNode) else None
    return isinstance(spec, MapNode) and spec.get("access") is not None


def example(tidegate: "Tidegate", view: "FunctionView") -> tuple[str, str | None]:
    """Returns a call of a function that has been ready, and a remark about it.

    The function itself is looked at: its inputs, its routes, and whether it requires a key.
    """
    if view.protocol == "grpc":
        return _grpc(tidegate, view), "needs grpcio; grpcurl and other clients name the function by the same authority"
    first = tidegate.function(view.stages[0]) if view.stages else view  # Its requests are the pipeline's.
    probe = _Probe(tidegate, first)
    try:
        words, remark = {"v2": _v2, "openai": _openai}.get(view.protocol, _http)(probe, first)
        trust = _trust(tidegate)
    finally:
        probe.close()
    if first is not view:
        if first.protocol == "http":  # Pipelines take POST alone.
            words, remark = f"{words} --data-binary @FILE", f"FILE: what {first.name} takes"
        words = words.replace(f"/functions/{first.name}", f"/functions/{view.name}", 1)
        words = words.replace(f"/v2/models/{first.models[0]}", f"/v2/models/{view.models[0]}", 1)
    pipe, _, call = words.rpartition(" | ")
    if _is_protected(tidegate, view):
        call += ' -H "authorization: Bearer $KEY"'
        remark = "KEY: an API key of a tenant that may call it"
    call = f"curl {trust}{call}"
    return (f"{pipe} | {call}" if pipe else call), remark


def _v2(probe: _Probe, view: "FunctionView") -> tuple[str, str | None]:
    model = view.models[0]
    metadata = f"{probe.base}/v2/models/{model}"
    _, found = probe.get(f"/v2/models/{model}")
    try:
        inputs = inputs_of(found if isinstance(found, dict) else {})
        batch = _batch(inputs)
        body = v2_json(inputs, batch).decode()
    except ValueError:
        return shlex.quote(metadata), "the model declares no inputs that an example could be made from"
    if len(body) <= SHORT:
        return f"{shlex.quote(metadata + '/infer')} {JSON} -d {shlex.quote(body)}", None
    return f"{_made(body)} | {shlex.quote(metadata + '/infer')} {JSON} -d @-", None


def _batch(inputs: tuple[Input, ...]) -> int:
    """Returns the smallest batch that the inputs allow."""
    return max(1, *(each.shape[0] if each.shape else 1 for each in inputs))


def _made(body: str) -> str:
    """Returns a command that prints the body, whose tensors repeat one value."""
    tensors = []
    for each in json.loads(body)["inputs"]:
        value = each.pop("data")
        one = json.dumps(value[0]) if isinstance(value[0], str) else repr(value[0])
        tensors.append(json.dumps(each)[:-1] + f', "data": [{one}] * {len(value)}}}')
    text = f'import json; print(json.dumps({{"inputs": [{", ".join(tensors)}]}}))'
    return f"python3 -c {shlex.quote(text)}"


def _openai(probe: _Probe, view: "FunctionView") -> tuple[str, str | None]:
    model = view.models[0]
    missing = 404
    chats = probe.get("/v1/chat/completions")[0] != missing or probe.get("/v1/embeddings")[0] == missing
    route = "chat/completions" if chats else "embeddings"
    asked: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}]} if chats else {"input": "Hello"}
    body = json.dumps({"model": model, **asked})
    return f"{shlex.quote(f'{probe.base}/v1/{route}')} {JSON} -d {shlex.quote(body)}", None


def _http(probe: _Probe, view: "FunctionView") -> tuple[str, str | None]:
    return shlex.quote(f"{probe.base}/"), None


def _grpc(tidegate: "Tidegate", view: "FunctionView") -> str:
    address = urlsplit(tidegate.gateway).netloc
    authority = urlsplit(view.url or "").hostname or view.name
    made = f'grpc.insecure_channel("{address}", [("grpc.default_authority", "{authority}")])'
    call = f'import grpc; print({made}.unary_unary("/grpc.health.v1.Health/Check")(b""))'
    return f"python3 -c {shlex.quote(call)}"


def _trust(tidegate: "Tidegate") -> str:
    """Returns curl's option for the front door's certificate: its file, or none of its checks where the certificate
    has not the name under which this machine calls it."""
    if not tidegate.gateway.startswith("https:"):
        return ""
    from tidegate.control.workers.certificates import client_context

    certificate = tidegate.status().certificate
    if certificate is None:
        return ""
    try:
        with httpx.Client(
            timeout=PROBE_S, trust_env=False, verify=client_context(None, authorities=certificate)
        ) as client:
            client.get(f"{tidegate.gateway}/healthz")
    except httpx.HTTPError:
        return "--insecure "
    return f"--cacert {shlex.quote(certificate)} "
