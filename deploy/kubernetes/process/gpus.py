"""What the GPUs of a cluster's nodes are to Tidegate: whole ones, parts that it does not count as parts, and devices of
resource claims (DRA), which it does not use."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidegate.schema.units import UnreadableError, whole

GPU: Final = "nvidia.com/gpu"
MIG: Final = "nvidia.com/mig-"
SHARED: Final = f"{GPU}.shared"
SHARING: Final = "nvidia.com/gpu.sharing-strategy"
"""Label of NVIDIA's feature discovery: ``none``, ``time-slicing`` or ``mps``."""
KIND: Final = "tidegate.dev/accelerator"
CLAIMED: Final = "gpu."
"""Begin of the names of DRA drivers of GPUs: ``gpu.nvidia.com``."""


def gpu_report(nodes: Iterable[Mapping[str, Any]], slices: Iterable[Mapping[str, Any]] = ()) -> tuple[bool, str]:
    """Returns whether every GPU of the nodes can be used as a whole one, and what there is, in words. ``slices``: the
    cluster's ResourceSlices."""
    count, places, unlabelled = 0, 0, []
    shared: dict[str, list[str]] = {}
    other = _claimed(slices)
    for node in nodes:
        meta, has = node["metadata"], node.get("status", {}).get("allocatable", {})
        labels = meta.get("labels") or {}
        other |= {name for name in has if name.startswith(MIG) or name == SHARED}
        found = _count(has.get(GPU, "0"))
        if not found:
            continue
        count, places = count + found, places + 1
        if KIND not in labels:
            unlabelled.append(meta["name"])
        strategy = labels.get(SHARING, "none")
        if strategy != "none":
            shared.setdefault(strategy, []).append(meta["name"])
    if not places and not other:
        return True, f"no node has {GPU}: only CPU kinds can run here"
    parts = [f"{count} {GPU} on {places} nodes"]
    parts += [
        f"each of {', '.join(names)} is a part of a GPU ({strategy}) that counts as a whole one: its memory and"
        " processors are shared with Pods that Tidegate does not know"
        for strategy, names in sorted(shared.items())
    ]
    parts += [f"not used: {name}" for name in sorted(other)]
    parts += [f"not used without a label {KIND}: {', '.join(unlabelled)}"] if unlabelled else []
    return not shared and not other and not unlabelled, "; ".join(parts)


def _claimed(slices: Iterable[Mapping[str, Any]]) -> set[str]:
    """Returns the GPUs that are to be had by resource claims, by driver."""
    counts: Counter[str] = Counter()
    for each in slices:
        counts[each["spec"]["driver"]] += len(each["spec"].get("devices") or ())
    found = ((driver, count) for driver, count in counts.items() if driver.startswith(CLAIMED))
    return {f"{count} devices of resource claims ({driver})" for driver, count in found}


def _count(text: str) -> int:
    try:
        return whole(text)
    except UnreadableError:
        return 0
