"""The Secret to which replicas belong, when others delete it."""

import asyncio
import random
from collections.abc import Sequence

from tidegate.deploy.kubernetes.pods.template import PodSettings
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.process.owner import SUBJECT, Owner, put_token

HERE = PodSettings(image="i", namespace="here", owner="first")
GONE = RefusedError(404, "NotFound", "not found")
FORBIDDEN = RefusedError(403, "Forbidden", "may not create secrets")


class Cluster(KubernetesApi):
    """One Secret, whose next looks and writes are answered in turn; an exception is raised."""

    def __init__(self, looks: Sequence[str | ClusterError], writes: Sequence[str | ClusterError]) -> None:
        super().__init__(None, "here", random.Random(1), sleep=lambda _: asyncio.sleep(0))
        self.looks, self.writes = list(looks), list(writes)

    async def get(self, path: str, **_: str) -> Object:
        return _answer(path, self.looks)

    async def apply(self, path: str, body: Object, manager: str) -> Object:
        return _answer(path, self.writes)


def _answer(path: str, answers: list[str | ClusterError]) -> Object:
    assert path == "/api/v1/namespaces/here/secrets/tidegate-link"
    found = answers.pop(0)
    if isinstance(found, ClusterError):
        raise found
    return {"metadata": {"uid": found}}


def test_the_token_is_all_that_is_written_of_the_secret() -> None:
    """The labels are Helm's: an upgrade would be refused over one that another writer has set."""

    class Written(Cluster):
        async def apply(self, path: str, body: Object, manager: str) -> Object:
            bodies.append(body)
            return await super().apply(path, body, manager)

    bodies: list[Object] = []
    assert asyncio.run(put_token(Written([], ["second"]), HERE, "a")).owner == "second"
    (body,) = bodies
    assert body.keys() == {"apiVersion", "kind", "metadata", "data"}
    assert (body["metadata"], body["data"]) == ({"name": "tidegate-link"}, {"token": "YQ=="})


def looked(
    looks: Sequence[str | ClusterError], writes: Sequence[str | ClusterError]
) -> tuple[list[str | None], list[str | None]]:
    """Returns the owners that came after the first, and what was said."""
    owners: list[str | None] = []
    said: list[str | None] = []

    def note(subject: str, text: str | None) -> None:
        assert subject == SUBJECT
        said.append(text)

    async def run() -> None:
        cluster = Cluster(looks, writes)
        owner = Owner(cluster, HERE, "t", note, lambda settings: owners.append(settings.owner))
        await owner.look()
        assert not cluster.looks
        assert owner.missing is None

    asyncio.run(run())
    return owners, said


def test_a_secret_that_is_there_is_left_alone() -> None:
    assert looked(["first"], []) == ([], [])


def test_a_secret_that_is_gone_is_put_again_and_owns_what_comes() -> None:
    assert looked([GONE], ["second"])[0] == ["second"]
    assert looked(["other"], ["other"])[0] == ["other"], "others have made it again, without a token"


def test_it_is_said_while_it_cannot_be_put() -> None:
    owners, said = looked([ClusterError("away"), GONE, GONE], [FORBIDDEN, "second"])
    assert owners == ["second"]
    assert said[0] == (
        "the Secret tidegate-link, to which replicas belong, was deleted, so that Kubernetes deletes them, and none is"
        " made: may not create secrets"
    )
    assert said[-1] is None
