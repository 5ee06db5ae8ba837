"""Health calls, lists of models, and copies of model metadata, which the gateway answers itself.

A health call never starts a replica. A function that is scaled to zero counts as ready, because a request that comes
now would be served.
"""

import json
from collections.abc import Callable

from tidegate import __version__
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.gateway.answers.model_states import ModelStates, stages_of
from tidegate.gateway.routing import openai_paths as openai
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.match import Call, Target, stripped
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.route_table import FunctionRoute, RouteTable

KEPT_COPIES = 512
COPY_BYTES = 64 * 1024
METADATA_METHOD = "/inference.GRPCInferenceService/ModelMetadata"
"""A replica that speaks V2 reports the same over REST: a copy is made from there."""
_VERSION = b"/versions/"
_EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "statistics")
PROTECTED_FAILURE = "it cannot be served now; its operator can see why"
"""The reason that a health call gives for a function with an access rule: anybody may ask, and the reason in full has
the last lines of its server's output."""


def server_metadata() -> dict[str, object]:
    """Returns V2's description of the gateway. Its extensions are those whose calls name a model: they are forwarded to
    the function's server."""
    return {"name": "tidegate", "version": __version__, "extensions": list(_EXTENSIONS)}


def server_answer(call: Call, is_draining: bool) -> tuple[int, bytes]:
    """Answers V2's calls about the server itself."""
    if call is Call.SERVER_READY:
        return (503, b'{"ready":false}') if is_draining else (200, b'{"ready":true}')
    if call is Call.SERVER_METADATA:
        return 200, json.dumps(server_metadata()).encode()
    return 200, b'{"live":true}'


def only_its_server_knows(router: FunctionRouter, model: str, *, is_versioned: bool) -> bool:
    """Returns whether only the server of a function that is awake knows if a model is ready.

    That is so for a model that the function does not declare, or one of its versions. With an access rule a version is
    not passed on: the caller is not authenticated here.
    """
    return model not in router.route.models or (is_versioned and router.access is None)


def is_for_callers(target: Target, *, has_tag: bool) -> bool:
    """Returns whether a question to a function with an access rule is for its callers alone: one about metadata, a tag,
    or that only its own server can answer."""
    call = target.call
    if has_tag or call is Call.METADATA or call is Call.OWN_MODELS:
        return True
    return call is Call.MODEL_READY and target.route is not None and target.model not in target.route.models


def failure_of(router: FunctionRouter) -> str | None:
    """Returns the reason that anybody may read for which nothing of the function can be served now; None if something
    can, or may soon."""
    failure = router.failure
    return failure if failure is None or router.access is None else PROTECTED_FAILURE


def asked_about(target: Target, table: RouteTable) -> tuple[FunctionRoute, ...]:
    """Returns the functions whose states a question is about. Empty for any other question.

    The state of a function with an access rule is asked for only by a question that is passed on to it if it is awake.
    """
    if target.call is Call.MODELS:
        return tuple(route for route in table.functions if route.access is None)
    if target.call is Call.OWN_MODELS or target.call is Call.MODEL:
        route = target.route
        if route is not None and (route.access is None or target.call is Call.OWN_MODELS):
            return tuple(stages_of(route, table.functions) or (route,))
    return ()


def model_list(table: RouteTable) -> tuple[int, bytes]:
    """Returns every model that a function answers to."""
    models = sorted({model for route in table.functions for model in route.models or (route.name,)})
    return 200, json.dumps({"models": models}).encode()


def model_answer(call: Call, name: str, failure: str | None) -> tuple[int, bytes]:
    """Answers V2's calls about one function or model; ``failure``: the reason for which it cannot be served now."""
    if call is Call.FUNCTION_LIVE:
        return 200, b'{"live":true}'
    if failure is not None:
        return 503, json.dumps({"error": failure, "name": name, "ready": False}).encode()
    return 200, json.dumps({"name": name, "ready": True}).encode()


class Copies:
    """The last known metadata of models, by revision and path; bounded."""

    __slots__ = ("_asked", "_known")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bytes] = {}
        self._asked: dict[tuple[str, str], list[Callable[[bytes | None], None]]] = {}
        """What is asked for, and who waits for it."""

    def wants(self, revision: str, path: str) -> bool:
        """Returns whether a copy should be made; True once per revision and path until it is kept or given up."""
        key = (revision, path)
        if key in self._known or key in self._asked or len(self._known) + len(self._asked) >= KEPT_COPIES:
            return False
        self._asked[key] = []
        return True

    def waits(self, revision: str, path: str, done: Callable[[bytes | None], None]) -> bool:
        """Calls ``done`` with a copy that is asked for, or None, once that is known. Returns False if it is not asked
        for."""
        waiting = self._asked.get((revision, path))
        if waiting is None:
            return False
        waiting.append(done)
        return True

    def keep(self, revision: str, path: str, body: bytes | None) -> None:
        """Keeps a copy, or gives up with None if it could not be made; large ones are not kept."""
        key = (revision, path)
        waiting = self._asked.pop(key, ())
        if body is not None and len(body) <= COPY_BYTES:
            self._known[key] = body
        for done in waiting:
            done(body)

    def get(self, revision: str, path: str) -> bytes | None:
        return self._known.get((revision, path))

    def forget_except(self, revisions: frozenset[str]) -> None:
        for key in [key for key in self._known if key[0] not in revisions]:
            del self._known[key]

    def __repr__(self) -> str:
        return f"<Copies {len(self._known)} known, {len(self._asked)} asked>"


class HealthResponder:
    """Answers questions about the gateway, a function or a model without starting a replica."""

    __slots__ = ("_cold", "_fetch_metadata", "_listed", "copies", "states")

    def __init__(self, cold: ColdStarts, room: WaitingRoom, fetch_metadata: Callable[[str, str, str], None]) -> None:
        """``fetch_metadata(revision, address, path)`` makes a copy of model metadata, in the background."""
        self._cold = cold
        self._fetch_metadata = fetch_metadata
        self.states = ModelStates(cold, room)
        self.copies = Copies()
        self._listed: tuple[RouteTable, int, bytes] | None = None
        """The last list of all models: of this table, after so many changes of states."""

    def answer(self, target: Target, path: bytes, table: RouteTable, *, is_draining: bool) -> tuple[int, bytes] | None:
        """Returns status and body; None if only a replica can answer.

        A question about the states of models (:func:`asked_about`) has waited for them by now (``states``).
        """
        call, router = target.call, target.router
        if router is None:
            if call is Call.MODELS:
                return 200, self._list(table)
            return model_list(table) if call is Call.MODEL_LIST else server_answer(call, is_draining)
        route = router.route
        if call is Call.MODEL:
            return openai.model_object(target.model, route, self.states.status_of(table.functions))
        awake = self._cold.is_awake(route)
        if call is Call.OWN_MODELS:
            if awake:
                return None
            status_of = self.states.status_of(table.functions)
            if target.model:
                return openai.model_object(target.model, route, status_of)
            return openai.model_list((route,), status_of)
        if call is Call.METADATA:
            return None if awake else self._copy(target, path)
        if (
            call is Call.MODEL_READY
            and awake
            and only_its_server_knows(router, target.model, is_versioned=_VERSION in path)
        ):
            return None
        status, body = model_answer(call, target.model or router.name, failure_of(router))
        if call is Call.MODEL_READY and not target.v2:
            body = openai.with_own_keys(target.model, body)
        return status, body

    def _list(self, table: RouteTable) -> bytes:
        """Returns OpenAI's list of all models; made once for all who ask before a state changes."""
        changes = self._cold.changes
        if self._listed is None or self._listed[0] is not table or self._listed[1] != changes:
            _, body = openai.model_list(table.functions, self.states.status_of(table.functions))
            self._listed = (table, changes, body)
        return self._listed[2]

    def remember(self, state: RequestState, path: bytes, bind: Bind) -> None:
        """Counts metadata that a replica has just sent, and requests a copy of it, once per revision and path."""
        if state.counters is not None:
            state.counters.metadata += 1
        revision, target = bind.revision.id, state.target
        text = stripped(path, target.strip).decode("latin-1")
        if text == METADATA_METHOD:
            text = f"/v2/models/{target.model}"
        if self.copies.wants(revision, text):
            self._fetch_metadata(revision, bind.replica.address, text)

    def learn(self, router: FunctionRouter, path: str, done: Callable[[bytes | None], None]) -> None:
        """Calls ``done`` with the function's answer under this path: the last known one, else that of a replica. None
        if no replica is there or none answers."""
        known = self.copy_of(router, path)
        if known is not None:
            done(known)
            return
        for revision in router.route.revisions:
            replica = self._cold.replica_to_ask(revision) if revision.percent > 0.0 else None
            if replica is None:
                continue
            wants = self.copies.wants(revision.id, path)
            if self.copies.waits(revision.id, path, done):
                if wants:
                    self._fetch_metadata(revision.id, replica.address, path)
                return
        done(None)

    def is_awake(self, route: FunctionRoute) -> bool:
        """Returns whether some replica of the function is ready."""
        return self._cold.is_awake(route)

    def copy_of(self, router: FunctionRouter, path: str) -> bytes | None:
        """Returns the last known answer of the function's replicas under this path."""
        for revision in router.route.revisions:
            body = self.copies.get(revision.id, path)
            if body is not None:
                return body
        return None

    def _copy(self, target: Target, path: bytes) -> tuple[int, bytes] | None:
        if target.router is None:
            return None
        body = self.copy_of(target.router, stripped(path, target.strip).decode("latin-1"))
        return None if body is None else (200, body)

    def __repr__(self) -> str:
        return f"<HealthResponder {self.copies!r}>"
