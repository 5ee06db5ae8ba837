"""Matching: which function a request is for, and whether the gateway answers it itself.

A request names its function in one of these ways, in this order:

1. by host: ``NAME.<domain>``, or ``TAG-NAME.<domain>`` for the revision with this tag;
2. by a function's own rules (``match``: host, path prefix, fields);
3. by path prefix (``/functions/NAME/``, stripped before forwarding);
4. by a model's name in a V2 or V1 path;
5. by the model in the body of a call of OpenAI's API (``openai_paths.py``, ``openai_body.py``).

Otherwise it goes to the default function. A name that is given and unknown is "not found", never silently the default.
Only a model name in a path may be unknown here, because the default function may serve models that it does not declare.

Of several rules that fit the most specific one counts: one with a host before one without, then the longer path, then
more fields, then the table's order.

The paths of jobs (``/jobs/ID``) are the gateway's on every host.

Health calls never start a replica, so they are distinguished here (:class:`Call`). Equal heads repeat, so a bounded
dictionary stands in front of all this. The fields that rules read are part of its key; without rules no field is read.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from tidegate.function import Protocol
from tidegate.gateway.routing import openai_paths as openai
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.suggestions import Suggestions
from tidegate.headers import VARIANT
from tidegate.records.route_table import FunctionRoute, RouteMatch, RouteTable
from tidegate.wire.bodies.openai import openai_error
from tidegate.wire.message_heads import AnyRequestHead, method_and_path

PREFIX = b"/functions/"
JOBS = b"/jobs/"
is_job_path = re.compile(rb"/jobs/tg-[0-9a-f]{32}(?:/result)?").fullmatch
"""Matches the paths of jobs. No function has a path of this shape by chance, so they are the gateway's on every
host."""
CACHE_ENTRIES = 4096
CACHED_BYTES = 512
"""Requests with names that are longer together are matched each time: they are rare and would let a client fill
memory."""


class Call(StrEnum):
    """The kind of a request, as far as the gateway distinguishes it."""

    WORK = "work"
    """A request to be forwarded; it may start a replica."""
    SERVER_LIVE = "server_live"
    SERVER_READY = "server_ready"
    SERVER_METADATA = "server_metadata"
    MODEL_LIST = "model_list"
    """``GET /v2/models`` that names no function."""
    FUNCTION_LIVE = "function_live"
    FUNCTION_READY = "function_ready"
    MODEL_READY = "model_ready"
    """Health of a function or model: never starts a replica."""
    MODELS = "models"
    """OpenAI's and V1's list of all models."""
    MODEL = "model"
    """One model of that list."""
    OWN_MODELS = "own_models"
    """A list of models that names its function by host or path: answered by the function while it is awake."""
    JOB = "job"
    """A question about a job (``gateway/jobs``)."""
    METADATA = "metadata"
    """Metadata of a model or its server: answered from the last known copy while the function is scaled to zero."""


class Target:
    """The destination of a request; shared by all equal requests, never changed."""

    __slots__ = (
        "asked",
        "call",
        "error_format",
        "is_metadata",
        "is_work",
        "line",
        "model",
        "named",
        "named_in_body",
        "path",
        "rewrites",
        "router",
        "strip",
        "v2",
        "variant_line",
    )

    def __init__(
        self,
        call: Call,
        router: FunctionRouter | None,
        strip: int = 0,
        v2: bool = False,
        named: str = "",
        model: str = "",
        error_format: openai.ErrorFormat | None = None,
        named_in_body: bool = False,
    ) -> None:
        self.call = call
        self.is_work = call is Call.WORK
        self.is_metadata = call is Call.METADATA
        self.router = router
        """The function; None if the gateway answers itself, or no function was found."""
        self.strip = strip
        """Bytes to cut off the front of the target before forwarding."""
        self.v2 = v2
        """The client speaks V2 or V1 and reads errors in their shape."""
        self.named = named
        """The name that was looked up, for messages."""
        self.model = model
        """The model in the path or body, if the call is about one."""
        self.error_format = error_format
        """Writes errors as the client reads them; None for V2's shape or Tidegate's own."""
        self.named_in_body = named_in_body
        """The body has to be read because it names the function's model."""
        self.rewrites = bool(strip)
        """The replica gets another request target (:meth:`rewritten`)."""
        self.path: bytes | None = None
        """The request target that the replica gets; None if it is the client's without ``strip`` bytes."""
        self.asked = ""
        """The function that the request is for, if another variant serves it; else empty."""
        self.variant_line = b""
        """The header line of the answer of another variant than the request is for."""
        self.line: str | None = None
        """Method and path if all its requests have the same and another variant serves none of them."""

    @property
    def is_found(self) -> bool:
        return self.router is not None or not self.is_work or self.named_in_body

    def of(self, router: FunctionRouter) -> "Target":
        """Returns the target of the same call to another router."""
        target = Target(self.call, router, self.strip, self.v2, self.named, self.model, self.error_format)
        target.line = self.line
        return target

    def of_variant(self, router: FunctionRouter, path: bytes | None) -> "Target":
        """Returns the target of the same call to another variant; ``path``: the request target for its server, if it is
        another one."""
        target = self.of(router)
        target.line = None
        target.path = path
        target.rewrites = target.rewrites or path is not None
        target.asked = "" if self.router is None else self.router.name
        target.variant_line = b"%b: %b\r\n" % (VARIANT, router.name.encode())
        return target

    def rewritten(self, given: bytes) -> bytes:
        """Returns the request target that the replica gets."""
        return stripped(given, self.strip) if self.path is None else self.path

    @property
    def route(self) -> FunctionRoute | None:
        return None if self.router is None else self.router.route

    def __repr__(self) -> str:
        return f"<Target {self.call.value} {self.named or 'no name'}>"


class _ModelPath(NamedTuple):
    """The parts of ``/v2/models/NAME[/versions/V][/rest]``, ``/v2/repository/models/NAME/load`` or ``/unload``, or
    ``/v1/models/NAME[:verb]``."""

    model: str
    verb: str


class _Rule:
    """One compiled entry of a function's ``match``."""

    __slots__ = ("fields", "host", "path", "router")

    def __init__(self, match: RouteMatch, router: FunctionRouter) -> None:
        self.host = None if match.host is None else match.host.lower().encode()
        self.path = b"" if match.path_prefix is None else match.path_prefix.encode("latin-1").rstrip(b"/")
        """The prefix without a slash at its end: ``/a`` and ``/a/`` both mean the segment."""
        self.fields = tuple(
            (field.name.lower().encode(), None if field.value is None else field.value.encode("latin-1"))
            for field in match.headers
        )
        self.router = router

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key: the most specific rule first."""
        return (self.host is None, -len(self.path), -len(self.fields))

    def fits(self, head: AnyRequestHead, path: bytes) -> bool:
        """Returns whether everything that the rule states fits; path prefixes match whole segments."""
        if self.host is not None and head.host != self.host:
            return False
        if self.path and not (path.startswith(self.path) and path[len(self.path) :][:1] in (b"", b"/")):
            return False
        for name, wanted in self.fields:
            value = head.get(name)
            if value is None or (wanted is not None and value != wanted):
                return False
        return True


class Matcher:
    """Compiled from one route table; a new table makes a new matcher."""

    __slots__ = (
        "_by_host",
        "_by_model",
        "_by_name",
        "_cache",
        "_default",
        "_domain",
        "_looked_at",
        "_of_nobody",
        "_rules",
        "suggestions",
    )

    def __init__(self, table: RouteTable, routers: Mapping[str, FunctionRouter]) -> None:
        """``routers``: those of the table's functions, by name."""
        self.suggestions = Suggestions(table.functions)
        self._domain = b"." + table.domain.lower().encode()
        self._by_name = {name.encode(): router for name, router in routers.items()}
        self._by_host = {
            b"%b-%b" % (tag, router.name.encode()): tagged
            for router in routers.values()
            for tag, tagged in router.tagged.items()
        } | self._by_name
        """Routers by host; a function's own name counts before an equal combination of a tag and a name."""
        self._by_model: dict[str, FunctionRouter] = {}
        for route in table.functions:
            for model in route.models or (route.name,):
                self._by_model.setdefault(model, routers[route.name])
        self._default = routers.get(table.default) if table.default is not None else None
        rules = [_Rule(match, routers[route.name]) for route in table.functions for match in route.matches]
        self._rules = sorted(rules, key=lambda rule: rule.rank)
        self._looked_at = tuple(sorted({name for rule in rules for name, _ in rule.fields}))
        """Names of the fields that some rule reads."""
        self._cache: dict[tuple[bytes | None, ...], Target] = {}
        self._of_nobody = Target(Call.WORK, self._default)

    def match(self, head: AnyRequestHead) -> Target:
        """Returns the target of a request."""
        key: tuple[bytes | None, ...] = (head.method, head.host, head.target)
        if self._looked_at:
            key += tuple(map(head.get, self._looked_at))
        found = self._cache.get(key)
        return found if found is not None else self._match(head, key)

    def _match(self, head: AnyRequestHead, key: tuple[bytes | None, ...]) -> Target:
        """Matches a request that the cache does not know. Without its query, which each request may have of its own, it
        may."""
        path = head.path
        if path.startswith(JOBS) and is_job_path(path) is not None:
            return _A_JOB
        if len(path) != len(head.target):
            key = (*key[:2], path, *key[3:])
            found = self._cache.get(key)
            if found is not None:
                return found
        found = self._find(head, path)
        if found.is_found and sum(len(part) for part in key if part is not None) <= CACHED_BYTES:
            if len(self._cache) >= CACHE_ENTRIES:
                self._cache.clear()
            self._cache[key] = found
            if found is not _A_JOB:  # It stands for all jobs.
                found.line = method_and_path(head.method, path)
        return found

    def of_model(self, target: Target, model: str | None) -> Target:
        """Returns the target of a request after its body was read; ``model`` is None if the body names no model."""
        router = self._default if model is None else self._by_model.get(model)
        named = model or ""
        found = Target(Call.WORK, router, target.strip, False, named, named, target.error_format, named_in_body=True)
        found.line = target.line
        return found

    def of_call(self, head: AnyRequestHead) -> Target:
        """Returns the target of a gRPC call by its head: its path names a method and no function."""
        if self._rules or head.host.endswith(self._domain):
            return self.match(head)
        return self._of_nobody

    def of_served(self, model: str) -> Target:
        """Returns the target of a gRPC call by V2's model; an undeclared model may be the default function's."""
        return Target(Call.WORK, self._by_model.get(model, self._default), 0, True, model)

    def current(self, router: FunctionRouter) -> FunctionRouter:
        """Returns the router that stands for the same function, or tag of it, now; ``router`` if there is none."""
        found = self._by_name.get(router.name.encode())
        if found is None or not router.is_tag:
            return found or router
        tags = (tag for tag, each in router.tagged.items() if each is router)
        return found.tagged.get(next(tags, b""), router)

    def nearest(self, named: str) -> FunctionRouter | None:
        """Returns the function that a mistyped tag host (``TAG-NAME``) probably meant; used for the error message
        only. A function with an access rule counts also without tags: whether it has some is not shown."""
        name = named.encode("latin-1", "replace")
        found = [
            router
            for own, router in self._by_name.items()
            if (router.tagged or router.access is not None) and name.endswith(b"-" + own)
        ]
        return max(found, key=lambda router: len(router.name), default=None)

    def __repr__(self) -> str:
        return f"<Matcher {len(self._by_name)} functions, {len(self._rules)} rules, {len(self._cache)} cached>"

    def _find(self, head: AnyRequestHead, path: bytes) -> Target:
        host = head.host
        is_get = head.method in (b"GET", b"HEAD")
        if host.endswith(self._domain):
            name = host[: -len(self._domain)]
            return _of_function(self._by_host.get(name), name, is_get, path, 0)
        for rule in self._rules:
            if rule.fits(head, path):
                return _of_function(rule.router, rule.router.name.encode(), is_get, path, 0)
        if path.startswith(PREFIX):
            end = path.find(b"/", len(PREFIX))
            name = path[len(PREFIX) :] if end < 0 else path[len(PREFIX) : end]
            strip = len(path) if end < 0 else end
            return _of_function(self._by_name.get(name), name, is_get, path[strip:] or b"/", strip)
        return self._by_path(is_get, path)

    def _by_path(self, is_get: bool, path: bytes) -> Target:
        cut = openai.prefix_length(path)
        found = None if cut is None else self._on_surface(is_get, path[cut:], cut)
        if found is not None:
            return found
        v2 = _is_v2(path)
        parsed = _model_path(path)
        if parsed is not None:
            router = self._by_model.get(parsed.model, self._default)
            v2 = _reads_v2_errors(path)
            if router is None:
                return Target(Call.WORK, None, v2=v2, named=parsed.model)
            call, model = _call(router.route, path) if is_get else (Call.WORK, "")
            return Target(call, router, v2=v2, named=parsed.model, model=model)
        if is_get and v2:
            server_call = _SERVER_CALLS.get(path.rstrip(b"/"))
            if server_call is not None:
                return Target(server_call, None, v2=True)
        if self._default is None and path.startswith(JOBS):
            return _A_JOB  # A mistyped id: no function can be meant.
        return Target(Call.WORK, self._default, v2=v2)

    def _on_surface(self, is_get: bool, path: bytes, cut: int) -> Target | None:
        """Returns the target of a path of OpenAI's API that names no function; None if V1 means something else by it.

        ``/v1/models/NAME`` is OpenAI's for functions of its protocol (``llama3:8b`` is a name too). It is V1's for
        other functions, for ``NAME:predict`` and the like, and for unknown names if there is a default function. Under
        ``/openai`` it is OpenAI's for all.
        """
        error_format = openai.error_format_for(path)
        if is_get and openai.is_list(path):
            return Target(Call.MODELS, None, error_format=error_format)
        model = openai.named_model(path, _decoded)
        if not model:
            return Target(Call.WORK, None, cut, error_format=error_format, named_in_body=True)
        router = self._by_model.get(model)
        is_openais = cut > 0 or (router is not None and router.route.protocol == Protocol.OPENAI)
        if not is_openais and (router is not None or error_format is None or self._default is not None):
            return None
        error_format = error_format or openai_error
        if router is None:
            return Target(Call.WORK, None, named=model, model=model, error_format=error_format)
        return Target(
            Call.MODEL if is_get else Call.WORK, router, cut, named=model, model=model, error_format=error_format
        )


_A_JOB = Target(Call.JOB, None)
_REPOSITORY = b"/v2/repository/models/"
_SERVER_CALLS = {
    b"/v2": Call.SERVER_METADATA,
    b"/v2/health/live": Call.SERVER_LIVE,
    b"/v2/health/ready": Call.SERVER_READY,
    b"/v2/models": Call.MODEL_LIST,
}


def _of_function(router: FunctionRouter | None, name: bytes, is_get: bool, path: bytes, strip: int) -> Target:
    """Returns the target of a request that names a function; ``path`` as the function sees it."""
    v2 = _reads_v2_errors(path)
    named = name.decode("latin-1")
    if router is None:
        return Target(Call.WORK, None, v2=v2, named=named, error_format=openai.error_format_for(path))
    if router.route.protocol == Protocol.OPENAI and (cut := openai.prefix_length(path)):
        path, strip = path[cut:], strip + cut
    call, model = _call(router.route, path) if is_get else (Call.WORK, "")
    return Target(call, router, strip, v2, named, model, openai.error_format_for(path))


def _is_v2(path: bytes) -> bool:
    return path.startswith(b"/v2/") or path == b"/v2"


def _call(route: FunctionRoute, path: bytes) -> tuple[Call, str]:
    """Returns the kind of a GET to a function. Only functions that speak V2 have health calls that we know."""
    if route.protocol == Protocol.OPENAI:
        model = openai.named_model(path, _decoded)
        return (Call.OWN_MODELS if model or openai.is_list(path) else Call.WORK, model)
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
    is_v1 = not plain.startswith(b"/v2/")
    if parsed.verb == ("" if is_v1 else "ready"):
        return Call.MODEL_READY, parsed.model
    # ``/v2/models/stats`` means the statistics of all models, and no copy of them, unless a model has the name.
    is_statistics = parsed.model == "stats" and "stats" not in (route.models or (route.name,))
    if parsed.verb == "" and not is_v1 and not is_statistics:
        return Call.METADATA, parsed.model
    return Call.WORK, ""


def _model_path(path: bytes) -> _ModelPath | None:
    """Splits a model's path of V2, V2's repository or V1; returns None for other paths. OpenAI's ``/v1/models/NAME``
    reads the same here."""
    if path.startswith(b"/v2/models/"):
        parts = path[11:].split(b"/")
        rest = parts[1:]
        if len(rest) >= 2 and rest[0] == b"versions":
            rest = rest[2:]
        name = _decoded(parts[0])
        return _ModelPath(name, b"/".join(rest).decode("latin-1")) if name else None
    if path.startswith(_REPOSITORY):
        name_bytes, _, verb = path[len(_REPOSITORY) :].partition(b"/")
        name = _decoded(name_bytes)
        return _ModelPath(name, verb.decode()) if name and verb in (b"load", b"unload") else None
    if path.startswith(b"/v1/models/"):
        name_bytes, verb = _v1_parts(path)
        name = _decoded(name_bytes)
        return _ModelPath(name, verb.decode("latin-1")) if name and (verb or "/" not in name) else None
    return None


def _v1_parts(path: bytes) -> tuple[bytes, bytes]:
    """Returns name and verb of ``/v1/models/NAME[:verb]``. A verb is a word: ``llama3:8b`` is a name."""
    name, _, verb = path[11:].rpartition(b":")
    return (name, verb) if name and verb.isalpha() else (path[11:], b"")


def _reads_v2_errors(path: bytes) -> bool:
    """Returns whether clients of this path read ``error`` as a string: V2's, and those of V1's ``NAME:verb``."""
    return _is_v2(path) or (path.startswith(b"/v1/models/") and bool(_v1_parts(path)[1]))


def _decoded(name: bytes) -> str:
    """Percent-decodes one path segment; a segment that is not UTF-8 is read as Latin-1."""
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


def stripped(path: bytes, strip: int) -> bytes:
    """Returns the target without the function's prefix; never empty, and a query alone gets its slash."""
    rest = path[strip:]
    return rest if rest.startswith(b"/") else b"/" + rest
