"""The webhook's certificates in the cluster: one Secret, which replicas agree on by its version, and the bundle of
authorities in the webhook's configuration.

A replica that writes an older version than the newest is refused (409) and reads again. So of several replicas one
renews, and the others serve what it wrote with their next look.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidegate.deploy.kubernetes.process.api import CONFLICT, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.webhook.process.authority import carried_out
from tidegate.deploy.kubernetes.webhook.validity import Lifetimes, Material, Renewal, next_step

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
WEBHOOK_NAME: Final = "tidegate-webhook"
"""Name of every object of the webhook in the chart, but for cert-manager's."""
CERTIFICATE_OF: Final = "cert-manager.io/inject-ca-from"
"""Annotation of the configuration: namespace and name of cert-manager's Certificate, whose Secret has its name in the
chart."""
WEBHOOK: Final = "pods.tidegate.dev"
"""Name of the webhook in its configuration."""
MAX_STEPS: Final = 8
"""Changes of one look; one authority and one certificate are two."""
_KEYS: Final = {
    "ca.crt": "authority",
    "ca.key": "authority_key",
    "previous-ca.crt": "previous",
    "tls.crt": "certificate",
    "tls.key": "key",
}


def material_of(secret: Mapping[str, Any]) -> Material:
    """Reads a Secret: those of cert-manager have the same names."""
    data = secret.get("data") or {}
    return Material(**{field: base64.b64decode(data.get(key, "")) for key, field in _KEYS.items()})


def secret_of(configuration: Mapping[str, Any]) -> str:
    """Returns the name of the Secret with the webhook's certificate."""
    annotations = configuration["metadata"].get("annotations") or {}
    return str(annotations.get(CERTIFICATE_OF, WEBHOOK_NAME)).rpartition("/")[2]


def bundle_of(configuration: Mapping[str, Any]) -> bytes:
    """Returns the authorities that API servers trust for the webhook."""
    for each in configuration.get("webhooks") or ():
        if each["name"] == WEBHOOK:
            return base64.b64decode(each["clientConfig"].get("caBundle", ""))
    return b""


class Rotation:
    """The certificates of one webhook."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        namespace: str,
        secret: str,
        configuration: str,
        names: tuple[str, ...],
        lives: Lifetimes,
        now: Callable[[], float],
    ) -> None:
        self._api = api
        self._secret = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
        self._configuration = f"{CONFIGURATIONS}/{configuration}"
        self._names = names
        self._lives = lives
        self._now = now

    async def look(self, note: Callable[[str], None] = lambda _: None) -> Material:
        """Renews what is due, has the API server trust it, and returns what is to be served. Raises ClusterError."""
        trusted = bundle_of(await self._api.get(self._configuration))
        for _ in range(MAX_STEPS):
            found = await self._api.get(self._secret)
            has = material_of(found)
            is_trusted = has.bundle == trusted
            step = next_step(has, self._names, self._now(), self._lives, is_trusted=is_trusted)
            if step is Renewal.NONE:
                break
            made = carried_out(step, has, self._names, self._now(), self._lives)
            if await self._write(found, made):
                note(f"certificates: {_DONE[step]}")
        else:
            raise AssertionError("the certificates do not come to rest")
        if not is_trusted:
            await self._trust(has.bundle)
        return has

    async def _write(self, found: Object, made: Material) -> bool:
        """Writes the Secret; returns False if another replica was first."""
        data = {key: base64.b64encode(getattr(made, field)).decode() for key, field in _KEYS.items()}
        try:
            await self._api.call("PUT", self._secret, {**found, "data": data})
        except RefusedError as error:
            if error.status != CONFLICT:
                raise
            return False
        return True

    async def _trust(self, bundle: bytes) -> None:
        change = {"name": WEBHOOK, "clientConfig": {"caBundle": base64.b64encode(bundle).decode()}}
        kind = "application/strategic-merge-patch+json"
        await self._api.call("PATCH", self._configuration, {"webhooks": [change]}, kind=kind)


_DONE: Final = {
    Renewal.AUTHORITY: "a new authority is trusted beside the one before it",
    Renewal.CERTIFICATE: "a new serving certificate",
    Renewal.FORGET: "the authority before the present one is trusted no longer",
}
