"""A Function as a user's object: the manifest in it, and the status that is written back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.manifest.annotations import PREFIX
from tidegate.schema.yaml_nodes import dump

READY: Final = "Ready"
REFUSED: Final = "Refused"
MAX_MESSAGE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """What a deployment made of a Function or Pipeline."""

    is_ready: bool
    reason: str
    """One word: ``Ready``, ``Asleep``, ``Refused``."""
    message: str = ""
    revision: str | None = None
    wanted: int | None = None
    ready: int | None = None
    url: str | None = None


def manifest_of(resource: Mapping[str, Any]) -> str:
    """Returns the manifest that an object states: its annotations under our prefix, and its ``spec``."""
    meta = resource["metadata"]
    given = {key: text for key, text in meta.get("annotations", {}).items() if key.startswith(PREFIX)}
    named = {"name": meta["name"], **({"annotations": given} if given else {})}
    return dump(
        {
            "apiVersion": resource["apiVersion"],
            "kind": resource["kind"],
            "metadata": named,
            "spec": resource["spec"],
        }
    )


def new_status(resource: Mapping[str, Any], state: ResourceState, now: str) -> dict[str, Any] | None:
    """Returns the status to write, with ``now`` as an RFC 3339 time; None if it is written already. The time of a
    condition changes only with its status."""
    before = resource.get("status", {})
    known: Mapping[str, Any] = next((each for each in before.get("conditions", []) if each["type"] == READY), {})
    word = "True" if state.is_ready else "False"
    generation = resource["metadata"].get("generation", 0)
    condition = {
        "type": READY,
        "status": word,
        "reason": state.reason,
        "message": state.message[:MAX_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": known.get("lastTransitionTime", now) if known.get("status") == word else now,
    }
    status: dict[str, Any] = {"observedGeneration": generation, "conditions": [condition]}
    if resource["kind"] == "Function":
        figures = {"revision": state.revision, "replicas": state.wanted, "readyReplicas": state.ready, "url": state.url}
        status |= {key: figure for key, figure in figures.items() if figure is not None}
    return None if status == before else status
