"""A Function as a user's object: the manifest in it, and the status that is written back."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.manifest.annotations import PREFIX
from tidegate.schema.yaml_nodes import dump

READY: Final = "Ready"
LATEST: Final = "LatestReady"
"""Condition of what the newest deploy came to, while another revision may serve."""
SERVES, STARTS, FAILS = "Serves", "Starts", "Fails"
"""Reasons of it."""
REFUSED, STOPPED = "Refused", "Stopped"
MAX_MESSAGE: Final = 4096
LOCAL: Final = "localhost"
"""The default domain of functions: its names are addresses of the machine that asks."""
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceState:
    """What a deployment made of a Function or Pipeline."""

    is_ready: bool
    reason: str
    """One word: ``Ready``, ``Asleep``, ``Refused``."""
    message: str = ""
    latest: tuple[str, str] | None = None
    """What became of the newest revision (``SERVES``, ``STARTS``, ``FAILS``), and why. None if there is none."""
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


def digest_of(manifest: str) -> str:
    """Returns a short hash of a manifest. Unlike an object's ``generation`` it changes with annotations."""
    return hashlib.sha256(manifest.encode()).hexdigest()[:16]


def url_for_others(url: str | None, name: str, *, front: str | None, domain: str, by_path: bool) -> str | None:
    """Returns the URL of a function as others reach it; None if it has none.

    ``url``: by the gateway's own address; ``front``: ``[SCHEME://]HOST[:PORT]`` of its Service or Ingress, None if it
    is not known. A function is named by its host, or, with the default ``domain`` whose names mean the caller's own
    machine, by its path; not ``by_path``: calls name it themselves."""
    if front is None or url is None:
        return url
    stated, _, place = front.rpartition("://")
    scheme = stated or url.partition("://")[0]
    place = place.removesuffix(_DEFAULT_PORTS.get(scheme, ""))
    if domain != LOCAL:
        _, mark, port = place.partition(":")
        return f"{scheme}://{name}.{domain}{mark}{port}/"
    return f"{scheme}://{place}/functions/{name}/" if by_path else f"{scheme}://{place}/"


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns whether two states of an object have the same manifest and status, without making either."""
    notes = [each["metadata"].get("annotations", {}) for each in (one, other)]
    return notes[0] == notes[1] and all(one.get(key) == other.get(key) for key in ("spec", "status"))


def new_status(resource: Mapping[str, Any], digest: str, state: ResourceState, now: str) -> dict[str, Any] | None:
    """Returns the status to write of an object whose manifest, with this digest, was brought about, with ``now`` as an
    RFC 3339 time; None if nothing differs. The time of a condition changes only with its status."""
    before = resource.get("status", {})
    generation = resource["metadata"].get("generation", 0)
    stated = [(READY, "True" if state.is_ready else "False", state.reason, state.message)]
    if state.latest is not None:
        reason, message = state.latest
        stated.append((LATEST, {SERVES: "True", FAILS: "False"}.get(reason, "Unknown"), reason, message))
    conditions = []
    for kind, word, reason, message in stated:
        known: Mapping[str, Any] = next((each for each in before.get("conditions", []) if each["type"] == kind), {})
        conditions.append(
            {
                "type": kind,
                "status": word,
                "reason": reason,
                "message": message[:MAX_MESSAGE],
                "observedGeneration": generation,
                "lastTransitionTime": known.get("lastTransitionTime", now) if known.get("status") == word else now,
            }
        )
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "observedManifest": digest,
        "conditions": conditions,
    }
    figures: dict[str, Any] = {"revision": state.revision, "url": state.url}
    if resource["kind"] == "Function":  # A pipeline's replicas are those of its stages.
        figures |= {"replicas": state.wanted, "readyReplicas": state.ready}
    # A merge patch keeps what it does not name: a figure that is not known any more is taken away by name.
    status |= {key: figure for key, figure in figures.items() if figure is not None or key in before}
    kept = {key: figure for key, figure in status.items() if figure is not None}
    return None if kept == before else status
