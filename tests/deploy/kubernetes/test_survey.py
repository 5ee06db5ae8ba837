"""What an account that may not look at everything learns of a cluster. ``tests/live/test_kubernetes_up.py`` has the
rest."""

import asyncio
from typing import Any, cast

from tidegate.deploy.kubernetes.process.api import KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.process.survey import Answer, survey


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


def test_the_gpus_of_the_nodes_are_said_where_resource_claims_are_not_seen() -> None:
    async def ask() -> dict[str, tuple[Answer, str]]:
        found = survey(cast(KubernetesApi, Guarded()), "models")
        return {each.subject: (each.answer, each.text) async for each in found}

    answer, text = asyncio.run(ask())["GPUs"]
    assert answer is Answer.LACKS_LITTLE
    assert text.startswith("no node has nvidia.com/gpu: only CPU kinds can run here; devices of ")
    assert text.endswith("claims are not seen: /apis/resource.k8s.io/v1/resourceslices is forbidden")
