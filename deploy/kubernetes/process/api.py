"""Calls to a cluster's API server: plain JSON, by the official client's configuration and connection.

``kubernetes.aio`` reads kubeconfig files and the account of a Pod, renews credentials and keeps the connections. Its
models are left aside: they double the memory of each object and know no custom resource.
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.errors import TidegateError
from tidegate.records.codec import Lines

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

Object = dict[str, Any]

CALL_S: Final = 10.0
WATCH_S: Final = 240
"""Length of one watch; varied, so that those of many processes do not end together."""
SILENCE_S: Final = 90.0
"""A watch that sends nothing for so long, not even a bookmark (each minute), is given up."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 5.0
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


class KubernetesApi:
    """One API server. :meth:`connect` makes it, :meth:`close` comes last."""

    def __init__(self, client: "ApiClient", namespace: str, rng: random.Random) -> None:
        self._client = client
        self._rng = rng
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
        found = client.Configuration()
        try:
            if context is None and config is None and IN_CLUSTER.exists():
                configs.load_incluster_config(found)
                namespace = (IN_CLUSTER / "namespace").read_text().strip()
            else:
                await configs.load_kube_config(config, context, client_configuration=found)
                contexts, active = configs.list_kube_config_contexts(config)
                chosen = next((each for each in contexts if each["name"] == context), active)
                namespace = chosen["context"].get("namespace", "default")
        except (configs.ConfigException, OSError) as error:
            raise ClusterError(f"no cluster: {error}") from error
        return cls(client.ApiClient(found), namespace, rng)

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

    async def delete(self, path: str, *, grace_s: int | None = None, uid: str | None = None) -> None:
        """Orders a deletion. An object that is not there, or is another one by now, counts as deleted."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self.call("DELETE", path, body)
        except RefusedError as error:
            if error.status not in (404, 409):
                raise

    async def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = "application/json",
    ) -> Object:
        """Returns the answer. Raises RefusedError, and ClusterError without one."""
        import aiohttp

        try:
            response = await self._send(method, path, body, query or {}, kind, CALL_S)
            data = await response.read()
            status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterError(f"the API server does not answer: {error!r}") from error
        answer = _object(data)
        if not 200 <= status < 300:
            causes = (answer.get("details") or {}).get("causes", ())
            raise RefusedError(status, answer.get("reason", ""), answer.get("message", f"status {status}"), causes)
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

    async def follow(self, path: str, selector: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Yields ``("PRESENT", object)`` for each object and its changes, ``("DELETED", object)``, and
        ``("SYNCED", {})`` when all of them are known. It never ends: a watch that breaks begins again with a list, and
        objects that are gone by then are yielded as deleted."""
        known: dict[str, Object] = {}
        pause = _FIRST_PAUSE_S
        while True:
            try:
                listed = await self.get(path, labelSelector=selector)
                fresh = {each["metadata"]["uid"]: each for each in listed.get("items", [])}
                for uid in known.keys() - fresh.keys():
                    yield "DELETED", known.pop(uid)
                for uid, each in fresh.items():
                    known[uid] = each
                    yield "PRESENT", each
                yield "SYNCED", {}
                pause = _FIRST_PAUSE_S
                async with aclosing(self._watch(path, selector, listed["metadata"]["resourceVersion"])) as events:
                    async for kind, each in events:
                        uid = each["metadata"]["uid"]
                        if kind == "DELETED":
                            known.pop(uid, None)
                        else:
                            known[uid] = each
                        yield ("DELETED" if kind == "DELETED" else "PRESENT"), each
            except ClusterError:
                await asyncio.sleep(pause * self._rng.uniform(0.8, 1.2))
                pause = min(_MAX_PAUSE_S, 2 * pause)

    async def _watch(self, path: str, selector: str, version: str) -> AsyncGenerator[tuple[str, Object], None]:
        """Yields changes after a version, until the server ends the watch or reports an error in it."""
        import aiohttp

        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "resourceVersion": version,
            "timeoutSeconds": str(int(WATCH_S * self._rng.uniform(0.8, 1.2))),
        }
        response = None
        try:
            response = (await self._send("GET", path, None, query, "application/json", 0.0)).response
            if response.status != 200:
                data = _object(await response.read())
                raise RefusedError(response.status, data.get("reason", ""), data.get("message", "no watch"))
            lines = Lines()
            async for piece in response.content.iter_any():
                for line in lines.push(piece):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return  # Mostly 410: the version is too old. What is there is listed again.
                    if event["type"] != "BOOKMARK":
                        yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ClusterError(f"the watch broke: {error!r}") from error
        finally:
            if response is not None:
                response.close()

    def __repr__(self) -> str:
        return f"<KubernetesApi {self.host}>"


def _object(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace")}
    return found if isinstance(found, dict) else {}
