"""The state of a cluster's webhook, as ``tidegate doctor`` shows it: nothing is changed."""

from tidegate.deploy.kubernetes.pods.template import INJECT
from tidegate.deploy.kubernetes.process.api import KubernetesApi
from tidegate.deploy.kubernetes.process.survey import Answer, Surveyed, asked, found_object
from tidegate.deploy.kubernetes.webhook.process.rotation import (
    CONFIGURATIONS,
    WEBHOOK_NAME,
    bundle_of,
    material_of,
    secret_of,
)
from tidegate.deploy.kubernetes.webhook.validity import Health, health


async def survey_webhook(api: KubernetesApi, namespace: str, now: float) -> Surveyed:
    """Looks whether API servers can call the webhook: its certificate, and the authorities that they trust. ``now``:
    Unix seconds."""
    return await asked("webhook", False, lambda: _state(api, namespace, now))


async def _state(api: KubernetesApi, namespace: str, now: float) -> tuple[Answer, str]:
    found = await found_object(api, f"{CONFIGURATIONS}/{WEBHOOK_NAME}")
    if found is None:
        return Answer.HAS, f"not installed: only Pods with the label {INJECT} need it (webhook.enabled of the chart)"
    where = found["webhooks"][0]["clientConfig"].get("service", {}).get("namespace", namespace)
    name = secret_of(found)
    secret = await found_object(api, f"/api/v1/namespaces/{where}/secrets/{name}")
    if secret is None:
        return Answer.LACKS, (
            f"the Secret {name} of namespace {where} is not there: helm upgrade or cert-manager makes it again."
            f" A webhook that runs serves what it had; without one, Pods with the label {INJECT} are refused"
        )
    state, left_s = health(material_of(secret).certificate, bundle_of(found), now)
    left = f"{abs(left_s) / 86_400:.1f} days"
    if state is Health.GOOD:
        return Answer.HAS, f"its certificate is trusted, and ends in {left}"
    if state is Health.NEAR_END:
        return Answer.LACKS_LITTLE, f"its certificate ends in {left} and is not renewed: its log says why"
    what = {
        Health.EXPIRED: f"its certificate has ended {left} ago",
        Health.UNTRUSTED: "no authority of caBundle has signed its certificate",
        Health.MISSING: f"the Secret {name} of namespace {where} has no certificate",
    }[state]
    return Answer.LACKS, f"{what}: Pods with the label {INJECT} are refused"
