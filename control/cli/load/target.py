"""Target of ``tidegate load``: a URL, or a function of the running deployment by name."""

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tidegate.loadgen.clients.call import WantedSla
from tidegate.loadgen.plans.load import LoadOptions, LoadPlan
from tidegate.schema.yaml_nodes import Faults

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate

V2_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"
V2_STREAM: Final = "/inference.GRPCInferenceService/ModelStreamInfer"
_PORTS: Final = {"http": 80, "https": 443, "grpc": 80}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``path`` is the request path; ``sla`` is the function's own."""

    text: str
    protocol: str
    host: str
    port: int
    path: str
    authority: str
    tls: ssl.SSLContext | None
    model: str
    sla: WantedSla | None = None

    @property
    def address(self) -> str:
        """Returns ``host:port``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def of_url(options: LoadOptions, plan: LoadPlan) -> Target:
    """Returns the target of a URL: ``http://``, ``https://`` or ``grpc://`` (cleartext). Raises InvalidInputError."""
    faults = Faults("load")
    parts = urlsplit(options.target)
    try:
        port = parts.port
    except ValueError:
        port = 0
    host = parts.hostname or ""
    if "@" in parts.netloc:
        faults.report("TARGET", "a URL with a user", "the user's credentials as a --header: they are not for reports")
    elif parts.scheme not in _PORTS or not host or port == 0 or not options.target.isprintable():
        faults.add("TARGET", options.target, "http://HOST[:PORT]/PATH, https://..., grpc://HOST:PORT, or a function")
    protocol = plan.protocol or ("grpc" if parts.scheme == "grpc" else "http")
    if (protocol == "grpc") != (parts.scheme == "grpc"):
        faults.add("--protocol", protocol, "grpc with grpc://HOST:PORT, another one with http:// or https://")
    path = options.path or (parts.path + (f"?{parts.query}" if parts.query else ""))
    model = options.model or _model_in(path)
    if protocol == "v2" and not (path.startswith("/") and _model_in(path)):
        faults.add("TARGET", options.target, "a URL that ends in /v2/models/NAME/infer for protocol v2")
    if protocol == "openai":
        path = path if len(path) > 1 else "/v1/chat/completions"
    if protocol == "grpc":
        path = _call(options, path, faults)
    if not model and plan.body is None and protocol in ("openai", "grpc"):
        faults.report("--model", "nothing", "the name of the model, or a complete request with --body FILE")
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
    """Returns the target of a function, through the front door. Raises InvalidInputError and the errors of the SDK."""
    view = tidegate.function(options.target)
    parts = urlsplit(tidegate.gateway)
    is_tls = parts.scheme == "https"
    faults = Faults("load")
    protocol = plan.protocol or view.protocol
    model = options.model or (view.models[0] if view.models else view.name)
    path = options.path or {"v2": f"/v2/models/{model}/infer", "openai": "/v1/chat/completions"}.get(protocol, "/")
    if protocol == "grpc":
        if is_tls:
            faults.report("--protocol", "grpc behind TLS", "another protocol: gRPC is sent in cleartext only")
        path = _call(options, "" if path == "/" else path, faults)
    _check(options, plan, protocol, path, faults)
    faults.raise_any()
    sla = None if view.latency_s is None else WantedSla(view.latency_s, view.percentile, view.per_token_s)
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
    """Adds a fault for each option that the protocol does not support."""
    if path and not path.startswith("/"):
        faults.add("--path", path, "a path that begins with /")
    if options.method is not None and not (options.method.isalpha() and options.method.isupper()):
        faults.add("--method", options.method, "a method in capitals, such as GET")
    if options.method is not None and protocol != "http":
        faults.add("--method", options.method, "only with --protocol http: the other protocols define their method")
    if options.method == "CONNECT":
        faults.add("--method", options.method, "a method that the server answers itself")
    if options.stream and protocol != "grpc":
        faults.report("--stream", f"with {protocol}", "only with gRPC; OpenAI calls stream by themselves")
    if plan.batches is not None and protocol in ("http", "openai") and options.batch_header is None:
        faults.report(
            "--batches",
            f"with {protocol}",
            "v2 or grpc, whose bodies are generated; with other protocols use --batch-header",
        )
    if options.batch_header is not None and protocol == "grpc":
        faults.report("--batch-header", "with grpc", "another protocol: a gRPC message contains its batch size")


def _call(options: LoadOptions, path: str, faults: Faults) -> str:
    """Returns the path of a gRPC call: the V2 inference method, unless another one is given together with its
    message."""
    if len(path) > 1 and options.path is not None and options.body is None:
        faults.add("--path", path, "together with --body FILE, which holds the message")
    if options.path is not None:
        return options.path
    return V2_STREAM if options.stream else V2_INFER


def _model_in(path: str) -> str:
    """Returns NAME of ``.../v2/models/NAME/infer``."""
    _, found, rest = path.partition("/v2/models/")
    name, _, verb = rest.partition("/")
    return name if found and verb.split("?")[0].endswith("infer") else ""
