"""Which function a request is for, and whether the front door answers it by itself.

A request names its function, in this order, by host (``NAME.<domain>``), by path prefix (``/functions/NAME/``,
stripped before forwarding), by a model's name in a V2 or V1 path, else it goes to the default function. A name that
is given and unknown is "not found", never silently the default; only a model name may be unknown here, because the
default function may serve models that it does not declare.

Calls that ask about health never wake a function, so they are told apart here (:class:`Call`). Equal heads repeat,
so a bounded dictionary stands in front of the parsing.
"""

from dataclasses import dataclass
from enum import StrEnum

from tidegate.function import Protocol
from tidegate.records import FunctionRoute, RouteTable

PREFIX = b"/functions/"
CACHE_ENTRIES = 4096
CACHED_PATH_BYTES = 256
"""Longer paths are matched each time: they are rare and would let a client fill memory."""


class Call(StrEnum):
    """What a request wants, as far as the front door must know."""

    WORK = "work"
    """To be forwarded; wakes the function."""
    SERVER_LIVE = "server_live"
    SERVER_READY = "server_ready"
    SERVER_METADATA = "server_metadata"
    MODEL_LIST = "model_list"
    """``GET /v2/models`` that names no function."""
    FUNCTION_LIVE = "function_live"
    FUNCTION_READY = "function_ready"
    MODEL_READY = "model_ready"
    """Health of a function or model: never wakes it."""
    METADATA = "metadata"
    """About a model or its server: answered from the last known copy while the function sleeps."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. ``route`` None: to the front door itself, or nowhere."""

    call: Call
    route: FunctionRoute | None
    strip: int = 0
    """Bytes to cut off the front of the target before forwarding."""
    v2: bool = False
    """The client speaks V2 and reads errors in V2's shape."""
    named: str = ""
    """The name that was looked for, for messages."""
    model: str = ""
    """The model in the path, if the call is about one."""

    @property
    def is_found(self) -> bool:
        return self.route is not None or self.call is not Call.WORK


@dataclass(frozen=True, slots=True)
class _ModelPath:
    """``/v2/models/NAME[/versions/V][/rest]`` or ``/v1/models/NAME[:verb]`` taken apart."""

    model: str
    verb: str


class Matcher:
    """Compiled from one route table; a new table makes a new matcher."""

    __slots__ = ("_by_model", "_by_name", "_cache", "_default", "_domain")

    def __init__(self, table: RouteTable) -> None:
        self._domain = b"." + table.domain.lower().encode()
        self._by_name: dict[bytes, FunctionRoute] = {route.name.encode(): route for route in table.functions}
        self._by_model: dict[str, FunctionRoute] = {}
        for route in table.functions:
            for model in route.models or (route.name,):
                self._by_model.setdefault(model, route)
        self._default = self._by_name.get(table.default.encode()) if table.default is not None else None
        self._cache: dict[tuple[bytes, bytes, bytes], Target] = {}

    def match(self, method: bytes, host: bytes, path: bytes) -> Target:
        """The target of a request; ``host`` in lower case without port, ``path`` without its query."""
        key = (method, host, path)
        found = self._cache.get(key)
        if found is None:
            found = self._find(method, host, path)
            if len(path) <= CACHED_PATH_BYTES and found.is_found:
                if len(self._cache) >= CACHE_ENTRIES:
                    self._cache.clear()
                self._cache[key] = found
        return found

    def __repr__(self) -> str:
        return f"<Matcher {len(self._by_name)} functions, {len(self._cache)} cached>"

    def _find(self, method: bytes, host: bytes, path: bytes) -> Target:
        is_get = method in (b"GET", b"HEAD")
        if host.endswith(self._domain):
            name = host[: -len(self._domain)]
            return self._of_function(self._by_name.get(name), name, is_get, path, 0)
        if path.startswith(PREFIX):
            end = path.find(b"/", len(PREFIX))
            name = path[len(PREFIX) :] if end < 0 else path[len(PREFIX) : end]
            strip = len(path) if end < 0 else end
            return self._of_function(self._by_name.get(name), name, is_get, path[strip:] or b"/", strip)
        return self._by_path(is_get, path)

    def _of_function(self, route: FunctionRoute | None, name: bytes, is_get: bool, path: bytes, strip: int) -> Target:
        v2 = _is_v2(path)
        named = name.decode("latin-1")
        if route is None:
            return Target(Call.WORK, None, v2=v2, named=named)
        call, model = _call(route, path) if is_get else (Call.WORK, "")
        return Target(call, route, strip, v2, named, model)

    def _by_path(self, is_get: bool, path: bytes) -> Target:
        v2 = _is_v2(path)
        parsed = _model_path(path)
        if parsed is not None:
            route = self._by_model.get(parsed.model, self._default)
            if route is None:
                return Target(Call.WORK, None, v2=v2, named=parsed.model)
            call, model = _call(route, path) if is_get else (Call.WORK, "")
            return Target(call, route, v2=v2, named=parsed.model, model=model)
        if is_get and v2:
            server_call = _SERVER_CALLS.get(path.rstrip(b"/"))
            if server_call is not None:
                return Target(server_call, None, v2=True)
        return Target(Call.WORK, self._default, v2=v2)


_SERVER_CALLS = {
    b"/v2": Call.SERVER_METADATA,
    b"/v2/health/live": Call.SERVER_LIVE,
    b"/v2/health/ready": Call.SERVER_READY,
    b"/v2/models": Call.MODEL_LIST,
}


def _is_v2(path: bytes) -> bool:
    return path.startswith(b"/v2/") or path == b"/v2"


def _call(route: FunctionRoute, path: bytes) -> tuple[Call, str]:
    """What a GET to a function asks for. Only functions that speak V2 have health calls that we know."""
    if route.protocol != Protocol.V2:
        return Call.WORK, ""
    plain = path.rstrip(b"/")
    if plain == b"/v2/health/live":
        return Call.FUNCTION_LIVE, ""
    if plain == b"/v2/health/ready":
        return Call.FUNCTION_READY, ""
    if plain == b"/v2":
        return Call.METADATA, ""
    parsed = _model_path(plain)
    if parsed is None:
        return Call.WORK, ""
    if parsed.verb == "ready":
        return Call.MODEL_READY, parsed.model
    if parsed.verb == "":
        return Call.METADATA, parsed.model
    return Call.WORK, ""


def _model_path(path: bytes) -> _ModelPath | None:
    """Takes a V2 or V1 model path apart; None for other paths. OpenAI's ``/v1/models/NAME`` reads the same here."""
    if path.startswith(b"/v2/models/"):
        parts = path[11:].split(b"/")
        rest = parts[1:]
        if len(rest) >= 2 and rest[0] == b"versions":
            rest = rest[2:]
        name = _decoded(parts[0])
        return _ModelPath(name, b"/".join(rest).decode("latin-1")) if name else None
    if path.startswith(b"/v1/models/"):
        name_bytes, _, verb = path[11:].partition(b":")
        name = _decoded(name_bytes)
        return _ModelPath(name, verb.decode("latin-1")) if name and "/" not in name else None
    return None


def _decoded(name: bytes) -> str:
    """Percent-decoding of one path segment; bytes that are not UTF-8 stand for themselves."""
    if b"%" in name:
        first, *rest = name.split(b"%")
        pieces = [first]
        for piece in rest:
            code = piece[:2]
            if len(code) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in code):
                pieces.append(bytes((int(code, 16),)) + piece[2:])
            else:
                pieces.append(b"%" + piece)
        name = b"".join(pieces)
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return name.decode("latin-1")
