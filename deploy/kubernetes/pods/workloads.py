"""The objects of one group of a revision: Deployment, headless Service and PodDisruptionBudget."""

from tidegate.deploy.kubernetes.pods.template import (
    ADMIN_PORT,
    SERVING_PORT,
    Object,
    PodSettings,
    label,
    labels,
    owners,
    pod_spec,
)
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.function import Revision


def group_name(revision: Revision, accelerator: str) -> str:
    """Returns the name of a group's objects: a DNS label."""
    return label(f"{revision.id}-{accelerator.lower().replace('.', '-').replace('_', '-')}")


def deployment(revision: Revision, accelerator: Accelerator, settings: PodSettings) -> Object:
    """Returns the Deployment of a group, without ``replicas``: whatever scales it writes those."""
    marks = labels(revision, accelerator.name, settings)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(revision, accelerator.name, settings),
        "spec": {
            "selector": {"matchLabels": marks},
            "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "25%"}},
            "template": {
                "metadata": {"labels": marks},
                "spec": pod_spec(revision, accelerator, settings, restarts=True),
            },
        },
    }


def service(revision: Revision, accelerator: str, settings: PodSettings) -> Object:
    """Returns the headless Service, whose EndpointSlices list a Pod as soon as it has an address."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(revision, accelerator, settings),
        "spec": {
            "clusterIP": "None",
            "selector": labels(revision, accelerator, settings),
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": "http", "port": SERVING_PORT, "targetPort": SERVING_PORT},
                {"name": "metrics", "port": ADMIN_PORT, "targetPort": ADMIN_PORT},
            ],
        },
    }


def disruption_budget(revision: Revision, accelerator: str, settings: PodSettings, size: int | None = None) -> Object:
    """Returns the budget of voluntary disruptions: one Pod at a time, and broken ones always.

    ``size``: replicas of a group whose Pods have no controller that knows it; Kubernetes then allows a number of Pods
    that stay, and no number of Pods that leave."""
    bound = {"maxUnavailable": 1} if size is None else {"minAvailable": max(0, size - 1)}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(revision, accelerator, settings),
        "spec": {
            **bound,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels(revision, accelerator, settings)},
        },
    }


def _metadata(revision: Revision, accelerator: str, settings: PodSettings) -> Object:
    return {
        "name": group_name(revision, accelerator),
        "namespace": settings.namespace,
        "labels": labels(revision, accelerator, settings),
        "ownerReferences": owners(settings),
    }
