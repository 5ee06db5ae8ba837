"""Calls to a cluster's API server: plain JSON, by the official client's configuration and connection.

``kubernetes.aio`` reads kubeconfig files and the account of a Pod, renews credentials and keeps the connections. Its
models are left aside: they double the memory of each object and know no custom resource.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import yaml

from tidegate.clock import monotonic
from tidegate.deploy.kubernetes.process.retries import Retries, Sleep
from tidegate.errors import TidegateError
from tidegate.records.codec import Lines

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient, Configuration

Object = dict[str, Any]

CALL_S: Final = 10.0
WATCH_S: Final = 240
"""Length of one watch; varied, so that those of many processes do not end together."""
SILENCE_S: Final = 90.0
"""A watch that sends nothing for so long, not even a bookmark (each minute), is given up."""
HELD_S: Final = 20.0
"""A watch that lasted so long has worked."""
PRESENT, GONE, SYNCED = "PRESENT", "DELETED", "SYNCED"
OPENED, BOOKMARK = "OPENED", "BOOKMARK"
UNAUTHORIZED, NOT_FOUND, CONFLICT, EXPIRED = 401, 404, 409, 410
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ClusterError(TidegateError):
    """The API server did not answer, or refused; the message says which."""


class RefusedError(ClusterError):
    """The API server answered with an error."""

    def __init__(self, status: int, reason: str, message: str, causes: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.causes = causes
        """What is wrong with an object, each with its ``field`` and ``message``."""

    @property
    def is_passing(self) -> bool:
        """True if the server could not answer now: the same call may succeed later."""
        return self.status in _PASSING


class ChangedError(RefusedError):
    """The object is not the one, or not in the state, that the call was meant for."""


class ExpiredError(RefusedError):
    """The version from which a watch was to go on is too old."""


class Fence(Protocol):
    """How long this process may still write."""

    def left_s(self) -> float:
        """Returns seconds; 0 or less: nothing may be written."""
        ...

    @property
    def why(self) -> str:
        """Why nothing may be written."""
        ...


class _Open:
    why = ""

    def left_s(self) -> float:
        return CALL_S


OPEN: Final[Fence] = _Open()
"""Bounds nothing."""


class KubernetesApi:
    """One API server. :meth:`connect` makes it, :meth:`close` comes last."""

    def __init__(
        self,
        client: "ApiClient",
        namespace: str,
        rng: random.Random,
        *,
        renew: "Callable[[], Awaitable[Configuration]] | None" = None,
        fence: Fence = OPEN,
        now: Callable[[], float] = monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """``renew`` reads the configuration again, when credentials have expired. None: they renew themselves."""
        self._client = client
        self._renew = renew
        self._renewing = asyncio.Lock()
        self._now = now
        self.sleep = sleep
        self.rng = rng
        self.fence = fence
        """Bounds what this process may write."""
        self.namespace = namespace
        """Namespace of the configuration's context."""

    @classmethod
    async def connect(
        cls, rng: random.Random, *, context: str | None = None, config: str | None = None
    ) -> "KubernetesApi":
        """Reads the configuration: of the Pod in which this process runs, if no ``context`` and no file is given and
        there is one, else of a kubeconfig file. Raises ClusterError."""
        try:
            from kubernetes.aio import client
            from kubernetes.aio import config as configs
        except ImportError as error:
            raise ClusterError("the package kubernetes is missing: pip install 'tidegate[kubernetes]'") from error

        async def read() -> "Configuration":
            found = client.Configuration()
            await configs.load_kube_config(config, context, client_configuration=found)
            return found

        try:
            if context is None and config is None and IN_CLUSTER.exists():
                found = client.Configuration()
                configs.load_incluster_config(found)
                namespace = (IN_CLUSTER / "namespace").read_text().strip()
                return cls(_named(client.ApiClient(found)), namespace, rng)
            stated = config or configs.kube_config.KUBE_CONFIG_DEFAULT_LOCATION
            _check_there(stated)
            chosen = _chosen(configs.kube_config.KubeConfigMerger, stated, context)
            found = await read()
            return cls(_named(client.ApiClient(found)), chosen["context"].get("namespace", "default"), rng, renew=read)
        except (configs.ConfigException, OSError) as error:
            raise ClusterError(f"no cluster: {error}") from error

    async def close(self) -> None:
        await self._client.close()

    @property
    def host(self) -> str:
        """URL of the API server."""
        return str(self._client.configuration.host)

    async def get(self, path: str, **query: str) -> Object:
        return await self.call("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        return await self.call("POST", path, body)

    async def patch(self, path: str, body: Object) -> Object:
        """A merge patch: lists are replaced as a whole."""
        return await self.call("PATCH", path, body, kind="application/merge-patch+json")

    async def resize(self, pod: str, container: str, resources: Object) -> None:
        """Changes what a container of a running Pod requests, in place."""
        body = {"spec": {"containers": [{"name": container, "resources": resources}]}}
        await self.call("PATCH", f"{pod}/resize", body, kind="application/strategic-merge-patch+json")

    async def apply(self, path: str, body: Object, manager: str) -> Object:
        """Server-side apply: owns the fields of ``body``, and takes them over from other managers."""
        query = {"fieldManager": manager, "force": "true"}
        return await self.call("PATCH", path, body, query=query, kind="application/apply-patch+yaml")

    async def delete(
        self, path: str, *, grace_s: int | None = None, uid: str | None = None, version: str | None = None
    ) -> None:
        """Orders a deletion. An object that is not there, or is another one by now, counts as deleted. With
        ``version``, one that has changed since is kept: raises ChangedError."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        conditions = {"uid": uid, "resourceVersion": version}
        if known := {key: text for key, text in conditions.items() if text is not None}:
            body["preconditions"] = known
        try:
            await self.call("DELETE", path, body)
        except RefusedError as error:
            if error.status == CONFLICT and version is not None:
                raise ChangedError(error.status, error.reason, str(error)) from error
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
        limit_s: float | None = None,
    ) -> Object:
        """Returns the answer. Raises RefusedError, and ClusterError without one. With ``limit_s`` the fence is not
        asked."""
        import aiohttp

        if limit_s is None:
            limit_s = CALL_S if method == "GET" else min(CALL_S, self.fence.left_s())
        if limit_s <= 0.0:
            raise ClusterError(f"nothing is written: {self.fence.why}")
        try:
            response = await self._send(method, path, body, query or {}, kind, limit_s)
            data = await response.read()
            status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"the API server does not answer: {error!r}") from error
        if not 200 <= status < 300:
            raise _refusal(status, _object(data))
        if (answer := _read(data)) is None:
            raise ClusterError(f"what answers is no API server: {data[:200].decode(errors='replace')!r}")
        return answer

    async def text(self, path: str, **query: str) -> str:
        """Returns an answer that is plain text. Raises RefusedError, and ClusterError without one."""
        import aiohttp

        try:
            response = await self._send("GET", path, None, query, "application/json", CALL_S)
            data: bytes = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"the API server does not answer: {error!r}") from error
        if response.status != 200:
            answer = _object(data)
            raise RefusedError(response.status, answer.get("reason", ""), answer.get("message", "no text"))
        return data.decode(errors="replace")

    async def _send(
        self, method: str, path: str, body: Object | None, query: Mapping[str, str], kind: str, timeout_s: float
    ) -> Any:
        """Sends a call, and once more with new credentials where the present ones are refused."""
        used = self._credentials()
        response = await self._send_once(method, path, body, query, kind, timeout_s)
        if response.status != UNAUTHORIZED or self._renew is None:
            return response
        async with self._renewing:
            if self._credentials() == used:
                await self._renew_credentials(self._renew)
        if self._credentials() == used:
            return response
        await response.read()
        return await self._send_once(method, path, body, query, kind, timeout_s)

    def _credentials(self) -> tuple[object, ...]:
        found = self._client.configuration
        return dict(found.api_key), found.cert_file, found.key_file

    async def _renew_credentials(self, renew: "Callable[[], Awaitable[Configuration]]") -> None:
        """Runs the program or reads the file that the credentials come from."""
        try:
            found = await renew()
        except Exception as error:  # a program, a file, or the answer of an issuer
            raise ClusterError(f"the credentials cannot be renewed: {error}") from error
        before = self._client
        if (found.cert_file, found.key_file) == (before.configuration.cert_file, before.configuration.key_file):
            before.configuration.api_key = found.api_key
            return
        self._client = _named(type(before)(found))
        await before.close()  # Its watches begin again.

    async def _send_once(
        self, method: str, path: str, body: Object | None, query: Mapping[str, str], kind: str, timeout_s: float
    ) -> Any:
        import aiohttp

        headers = {"Accept": "application/json, */*", "Content-Type": kind}
        method, url, fields, data, post = await self._client.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        limit = aiohttp.ClientTimeout(total=timeout_s) if timeout_s else aiohttp.ClientTimeout(sock_read=SILENCE_S)
        return await self._client.call_api(method, url, fields, data, post, _request_timeout=limit)

    # --- watching -------------------------------------------------------------------------------------------------

    async def follow(
        self,
        path: str,
        selector: str,
        *,
        known: dict[str, Object] | None = None,
        trouble: Callable[[str | None], None] = lambda _: None,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yields ``("PRESENT", object)`` for each object and its changes, ``("DELETED", object)``, and
        ``("SYNCED", {})`` when all of them are known. It never ends: a watch that ends goes on after its last change,
        one that breaks begins again with a list, and objects that are gone by then are yielded as deleted. The pauses
        between lists grow until a watch has held.

        ``known``: objects by uid that an earlier call has yielded. ``trouble`` is called with what is wrong, and with
        None when a list has succeeded."""
        known = {} if known is None else known
        retries = Retries(self.rng)
        while True:
            try:
                version = ""
                async for kind, each in self._listed(path, selector, known):
                    version = each["version"] if kind == SYNCED else version
                    yield kind, ({} if kind == SYNCED else each)
                while version:
                    began = self._now()
                    async with aclosing(self._held(path, selector, version, retries)) as events:
                        async for kind, each in events:
                            if kind == OPENED:
                                trouble(None)
                                continue
                            version = str(each["metadata"]["resourceVersion"])
                            if kind == BOOKMARK:
                                continue
                            known[each["metadata"]["uid"]] = each
                            yield (GONE if kind == GONE else PRESENT), each
                            if kind == GONE:
                                known.pop(each["metadata"]["uid"], None)
                    if self._now() - began < HELD_S:
                        await self.sleep(retries.next_s())
            except ExpiredError:
                pass  # What is there is listed again.
            except ClusterError as error:
                trouble(str(error))
            except (KeyError, TypeError, AttributeError) as error:
                trouble(f"the API server sends what cannot be read: {error!r}")
            await self.sleep(retries.next_s())

    async def _listed(
        self, path: str, selector: str, known: dict[str, Object]
    ) -> AsyncGenerator[tuple[str, Object], None]:
        listed = await self.get(path, labelSelector=selector)
        fresh = {each["metadata"]["uid"]: each for each in listed.get("items") or ()}
        version = str(listed["metadata"]["resourceVersion"])
        for uid in known.keys() - fresh.keys():
            yield GONE, known[uid]
            known.pop(uid, None)
        for uid, each in fresh.items():
            known[uid] = each
            yield PRESENT, each
        yield SYNCED, {"version": version}

    async def _held(
        self, path: str, selector: str, version: str, retries: Retries
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """One watch. One that lasts proves that the server works; one that does not is a failed attempt."""
        began = self._now()
        try:
            async with aclosing(self._watch(path, selector, version)) as events:
                async for event in events:
                    yield event
        finally:
            if self._now() - began >= HELD_S:
                retries.reset()

    async def _watch(self, path: str, selector: str, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Yields changes after a version, until the server ends the watch. Raises ExpiredError if the version is too
        old, and ClusterError."""
        import aiohttp

        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(int(WATCH_S * self.rng.uniform(0.8, 1.2))),
        }
        response = None
        try:
            response = (await self._send("GET", path, None, query, "application/json", 0.0)).response
            if response.status != 200:
                raise _refusal(response.status, _object(await response.read()))
            yield OPENED, {}
            lines = Lines()
            async for piece in response.content.iter_any():
                for line in lines.push(piece):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _refusal(event["object"].get("code", 500), event["object"])
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ClusterError(f"the watch broke: {error!r}") from error
        finally:
            if response is not None:
                response.close()

    def __repr__(self) -> str:
        return f"<KubernetesApi {self.host}>"


def _named(client: "ApiClient") -> "ApiClient":
    """Returns the client under our name: the API server keeps who has written a field, and who has called."""
    client.user_agent = "tidegate"
    return client


def _check_there(stated: str) -> None:
    """Raises ClusterError if there is none of the kubeconfig files."""
    if not any(Path(each).expanduser().exists() for each in stated.split(os.pathsep) if each):
        raise ClusterError(f"no cluster: there is no kubeconfig at {stated}")


def _chosen(merged: Callable[[str], Any], stated: str, context: str | None) -> Object:
    """Returns a context of the kubeconfig files, which ``merged`` reads; ``context`` None: the current one. Raises
    ClusterError."""
    try:
        found: Object = merged(stated).config.value
        names: dict[str, Object] = {each.value["name"]: each.value for each in found["contexts"]}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise ClusterError(f"no cluster: no kubeconfig at {stated}: {' '.join(str(error).split())}") from error
    known = f"kubeconfig has {', '.join(sorted(names)) or 'none'}"
    wanted = context or found.get("current-context")
    if not wanted:
        raise ClusterError(f"no cluster: no current context; {known}")
    if wanted not in names:
        raise ClusterError(f"no cluster: no context {wanted}; {known}")
    return names[wanted]


def _refusal(status: int, answer: Object) -> RefusedError:
    kind = ExpiredError if status == EXPIRED else RefusedError
    causes = (answer.get("details") or {}).get("causes", ())
    return kind(status, str(answer.get("reason", "")), str(answer.get("message", f"status {status}")), causes)


def _object(data: bytes) -> Object:
    """Returns the answer with a refusal, which may come from something before the API server."""
    found = _read(data)
    return {"message": data[:200].decode(errors="replace").strip()} if found is None else found


def _read(data: bytes) -> Object | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
