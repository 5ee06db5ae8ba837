"""The Secret to which replicas belong: put, and put again if others delete it.

Kubernetes deletes what belongs to a Secret that is gone, also what is made later under its uid. So no replica is made
until the Secret is there again.
"""

from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidegate.deploy.kubernetes.pods.template import PodSettings
from tidegate.deploy.kubernetes.process.api import NOT_FOUND, ClusterError, KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.process.retries import Note, Retries

SUBJECT: Final = "Secret of the replicas"


async def put_token(api: KubernetesApi, settings: PodSettings, token: str) -> PodSettings:
    """Puts the deployment's token into its Secret, which queue_proxies read. Returns the settings with that Secret as
    the owner of the Pods. Raises ClusterError."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": settings.token_secret},
        "data": {"token": b64encode(token.encode()).decode()},
    }
    written = await api.apply(_path(settings), secret, "tidegate")
    return replace(settings, owner=written["metadata"]["uid"])


def _path(settings: PodSettings) -> str:
    return f"/api/v1/namespaces/{settings.namespace}/secrets/{settings.token_secret}"


class Owner:
    """The Secret as this process knows it."""

    def __init__(
        self, api: KubernetesApi, settings: PodSettings, token: str, note: Note, renewed: Callable[[PodSettings], None]
    ) -> None:
        """``renewed`` takes the settings with another Secret as the owner."""
        self._api = api
        self._settings = settings
        self._token = token
        self._note = note
        self._renewed = renewed
        self._is_looking = False
        self.missing: str | None = None
        """Why no replica can be made."""

    async def look(self) -> None:
        """Looks whether the Secret is there, and puts it again where it is not. Called when others delete a Pod."""
        if self._is_looking or self._settings.owner is None:
            return
        self._is_looking = True
        retries = Retries(self._api.rng)
        try:
            while not await self._is_there():
                await self._api.sleep(retries.next_s())
        finally:
            self._is_looking = False

    async def _is_there(self) -> bool:
        try:
            if await self._uid() == self._settings.owner:
                return True
            self.missing = f"the Secret {self._settings.token_secret}, to which replicas belong, was deleted"
            self._settings = await put_token(self._api, self._settings, self._token)
        except ClusterError as error:
            if self.missing is not None:
                self._note(SUBJECT, f"{self.missing}, so that Kubernetes deletes them, and none is made: {error}")
            return False
        self.missing = None
        self._note(SUBJECT, None)
        self._renewed(self._settings)
        return True

    async def _uid(self) -> str | None:
        try:
            found = await self._api.get(_path(self._settings))
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            return None
        return str(found["metadata"]["uid"])

    def __repr__(self) -> str:
        return f"<Owner {self._settings.token_secret} {self._settings.owner}>"
