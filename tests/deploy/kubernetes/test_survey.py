"""What an account that may not look at everything learns of a cluster. ``tests/live/test_kubernetes_up.py`` has the
rest."""

import asyncio
from typing import Any, cast

import pytest

from tidegate.deploy.kubernetes.process.api import KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.process.survey import Answer, Surveyed, survey


class Guarded:
    """An API server that shows the nodes and nothing else."""

    host = "https://there"

    async def get(self, path: str) -> dict[str, Any]:
        if path == "/api/v1/nodes":
            return {"items": [{"metadata": {"name": "a"}, "status": {"allocatable": {"cpu": "2"}}}]}
        raise RefusedError(403, "Forbidden", f"{path} is forbidden")

    async def create(self, path: str, body: object) -> dict[str, Any]:
        return await self.get(path)

    async def call(self, verb: str, path: str, body: object, *, query: object) -> dict[str, Any]:
        return await self.get(path)


class Bare(Guarded):
    """An API server without Tidegate's resources, or with one of them."""

    def __init__(self, *there: str) -> None:
        self._there = there

    async def get(self, path: str) -> dict[str, Any]:
        if path != "/apis/tidegate.dev/v1alpha1":
            return {"items": [], "metadata": {}, "status": {"allowed": True}}
        if not self._there:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        return {"resources": [{"name": name} for name in self._there]}


@pytest.mark.parametrize(
    ("there", "answer", "begin"),
    [
        ((), Answer.LACKS, "no functions and pipelines of tidegate.dev/v1alpha1: "),
        (("functions", "functions/status"), Answer.LACKS, "no pipelines of "),
        (("functions", "pipelines"), Answer.HAS, "Function and Pipeline of "),
    ],
)
def test_a_cluster_without_the_resources_lacks_what_is_needed(
    there: tuple[str, ...], answer: Answer, begin: str
) -> None:
    found = found_by(Bare(*there))["resources"]
    assert found.answer is answer
    assert found.text.startswith(begin)
    if answer is Answer.LACKS:
        assert found.text.endswith("kubectl apply --server-side -f deploy/kubernetes/chart/resources)")
    assert found_by(Guarded())["resources"].answer is Answer.LACKS, "it cannot be seen"


class WithoutPolicies(Guarded):
    """An API server that lacks all policies and the namespace, or some of the policies."""

    def __init__(self, *there: str) -> None:
        self._there = there

    async def get(self, path: str) -> dict[str, Any]:
        if not path.endswith(self._there or ("nothing",)):
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        return {}


def test_policies_that_are_not_there_are_named_or_said_to_be_none() -> None:
    found = found_by(WithoutPolicies())
    assert found["policies"].answer is Answer.LACKS_LITTLE
    assert found["policies"].text.startswith("none of the admission of manifests and replicas: the API server refuses ")
    assert found["Pod Security"].text.endswith(
        "models (helm install --create-namespace, or kubectl create namespace models)"
    )
    text = found_by(WithoutPolicies("functions.tidegate.dev", "policies/epochs.tidegate.dev"))["policies"].text
    assert text.startswith("no ValidatingAdmissionPolicy pipelines.tidegate.dev with its binding, Validating")
    assert "ValidatingAdmissionPolicyBinding epochs.tidegate.dev, " in text


def found_by(api: Guarded) -> dict[str, Surveyed]:
    async def ask() -> dict[str, Surveyed]:
        return {each.subject: each async for each in survey(cast(KubernetesApi, api), "models")}

    return asyncio.run(ask())


def test_the_gpus_of_the_nodes_are_said_where_resource_claims_are_not_seen() -> None:
    found = found_by(Guarded())["GPUs"]
    assert found.answer is Answer.LACKS_LITTLE
    text = found.text
    assert text.startswith("no node has nvidia.com/gpu: only CPU kinds can run here; devices of ")
    assert text.endswith("claims are not seen: /apis/resource.k8s.io/v1/resourceslices is forbidden")
