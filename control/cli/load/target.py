"""Whom ``tidegate load`` sends to: a URL, or a function of the running deployment by its name."""

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tidegate.loadgen.plans.load import LoadOptions, LoadPlan
from tidegate.schema.yaml_nodes import Faults

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate

V2_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
V2_STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_PORTS: Final = {"http": 80, "https": 443, "grpc": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``path`` is what requests ask for; ``sla`` (seconds, percent) is what the function promises."""

    text: str
    protocol: str
    host: str
    port: int
    path: str
    authority: str
    tls: ssl.SSLContext | None
    model: str
    sla: tuple[float, float] | None = None

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def of_url(options: LoadOptions, plan: LoadPlan) -> Target:
    """A target by its URL: ``http://``, ``https://`` or ``grpc://`` (cleartext). Raises InvalidInputError."""
    faults = Faults("load")
    parts = urlsplit(options.target)
    try:
        port = parts.port
    except ValueError:
        port = 0
    host = parts.hostname or ""
    if "@" in parts.netloc:
        faults.say("TARGET", "a URL with a user", "the user's credentials as a --header: they are not for reports")
    elif parts.scheme not in _PORTS or not host or port == 0 or not options.target.isprintable():
        faults.add("TARGET", options.target, "http://HOST[:PORT]/PATH, https://..., grpc://HOST:PORT, or a function")
    protocol = plan.protocol or ("grpc" if parts.scheme == "grpc" else "http")
    if (protocol == "grpc") != (parts.scheme == "grpc"):
        faults.add("--protocol", protocol, "grpc with grpc://HOST:PORT, another one with http:// or https://")
    path = options.path or (parts.path + (f"?{parts.query}" if parts.query else ""))
    model = options.model or _model_in(path)
    if protocol == "v2" and not (path.startswith("/") and _model_in(path)):
        faults.add("TARGET", options.target, "of V2 a URL that ends in /v2/models/NAME/infer")
    if protocol == "openai":
        path = path if len(path) > 1 else "/v1/chat/completions"
    if protocol == "grpc":
        path = _call(options, path, faults)
    if not model and plan.body is None and protocol in ("openai", "grpc"):
        faults.say("--model", "nothing", "the name of the model, or the whole of a request with --body FILE")
    _check(options, plan, protocol, path, faults)
    faults.raise_any()
    return Target(
        text=options.target.partition("?")[0],
        protocol=protocol,
        host=host,
        port=port or _PORTS[parts.scheme],
        path=path or "/",
        authority=parts.netloc,
        tls=ssl.create_default_context() if parts.scheme == "https" else None,
        model=model,
    )


def of_function(options: LoadOptions, plan: LoadPlan, tidegate: "Tidegate") -> Target:
    """A function through the front door. Raises InvalidInputError, and what the SDK raises."""
    view = tidegate.function(options.target)
    parts = urlsplit(tidegate.gateway)
    is_tls = parts.scheme == "https"
    faults = Faults("load")
    protocol = plan.protocol or view.protocol
    model = options.model or (view.models[0] if view.models else view.name)
    path = options.path or {"v2": f"/v2/models/{model}/infer", "openai": "/v1/chat/completions"}.get(protocol, "/")
    if protocol == "grpc":
        if is_tls:
            faults.say("--protocol", "grpc behind TLS", "another protocol: gRPC is driven in cleartext")
        path = _call(options, "" if path == "/" else path, faults)
    _check(options, plan, protocol, path, faults)
    faults.raise_any()
    sla = None if view.latency_s is None else (view.latency_s, view.percentile)
    prefix = "" if protocol == "grpc" else f"/functions/{view.name}"
    return Target(
        text=f"{view.name} at {tidegate.gateway}",
        protocol=protocol,
        host=parts.hostname or "127.0.0.1",
        port=parts.port or _PORTS[parts.scheme],
        path=prefix + path,
        authority=f"{view.name}.localhost" if protocol == "grpc" else parts.netloc,
        tls=tidegate.trust() if is_tls else None,
        model=model,
        sla=sla,
    )


def _check(options: LoadOptions, plan: LoadPlan, protocol: str, path: str, faults: Faults) -> None:
    """What does not go with a protocol."""
    if path and not path.startswith("/"):
        faults.add("--path", path, "a path that begins with /")
    if options.method is not None and not (options.method.isalpha() and options.method.isupper()):
        faults.add("--method", options.method, "a method in capitals, such as GET")
    if options.method is not None and protocol != "http":
        faults.add("--method", options.method, "with --protocol http only: the other protocols have their own")
    if options.method == "CONNECT":
        faults.add("--method", options.method, "a method that asks the server itself")
    if options.stream and protocol != "grpc":
        faults.say("--stream", f"with {protocol}", "with gRPC only; OpenAI's calls stream by themselves")
    if plan.batches is not None and protocol in ("http", "openai") and options.batch_header is None:
        faults.say("--batches", f"with {protocol}", "v2 and grpc, whose bodies are made; with others --batch-header")
    if options.batch_header is not None and protocol == "grpc":
        faults.say("--batch-header", "with grpc", "another protocol: the message says its batch")


def _call(options: LoadOptions, path: str, faults: Faults) -> str:
    """The path of a gRPC call: V2's, unless another one is named together with its message."""
    if len(path) > 1 and options.path is not None and options.body is None:
        faults.add("--path", path, "together with --body FILE, the message as it is")
    if options.path is not None:
        return options.path
    return V2_STREAM if options.stream else V2_INFER


def _model_in(path: str) -> str:
    """Of ``.../v2/models/NAME/infer``."""
    _, found, rest = path.partition("/v2/models/")
    name, _, verb = rest.partition("/")
    return name if found and verb.split("?")[0].endswith("infer") else ""
