"""What is said of the GPUs of a cluster."""

from typing import Any

from tidegate.deploy.kubernetes.process.gpus import gpu_report


def node(name: str, has: dict[str, str], **labels: str) -> dict[str, Any]:
    known = {"tidegate.dev/accelerator": "t4", **{key.replace("__", "/"): each for key, each in labels.items()}}
    return {"metadata": {"name": name, "labels": known}, "status": {"allocatable": {"cpu": "8", **has}}}


def test_whole_gpus_are_counted() -> None:
    nodes = [node("a", {"nvidia.com/gpu": "4"}), node("b", {"nvidia.com/gpu": "2"}), node("c", {})]
    assert gpu_report(nodes) == (True, "6 nvidia.com/gpu on 2 nodes")


def test_a_cluster_without_gpus_runs_on_its_processors() -> None:
    assert gpu_report([node("a", {})]) == (True, "no node has nvidia.com/gpu: only CPU kinds can run here")


def test_a_part_that_is_offered_as_a_whole_gpu_is_said() -> None:
    shared = node("a", {"nvidia.com/gpu": "8"})
    shared["metadata"]["labels"]["nvidia.com/gpu.sharing-strategy"] = "time-slicing"
    is_whole, text = gpu_report([shared, node("b", {"nvidia.com/gpu": "1"})])
    assert not is_whole
    assert "each of a is a part of a GPU (time-slicing) that counts as a whole one" in text


def test_partitions_and_nodes_without_a_kind_are_not_used() -> None:
    bare = node("b", {"nvidia.com/gpu": "1"})
    bare["metadata"]["labels"] = None
    is_whole, text = gpu_report([node("a", {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu.shared": "4"}), bare])
    assert not is_whole
    assert "not used: nvidia.com/gpu.shared; not used: nvidia.com/mig-1g.5gb" in text
    assert "not used without a label tidegate.dev/accelerator: b" in text


def test_devices_of_resource_claims_are_not_used() -> None:
    def slice_of(driver: str, count: int) -> dict[str, Any]:
        return {"spec": {"driver": driver, "devices": [{"name": f"gpu-{number}"} for number in range(count)]}}

    slices = [slice_of("gpu.nvidia.com", 2), slice_of("gpu.nvidia.com", 4), slice_of("nic.example.com", 8)]
    is_whole, text = gpu_report([node("a", {})], slices)
    assert not is_whole
    assert text == "0 nvidia.com/gpu on 0 nodes; not used: 6 devices of resource claims (gpu.nvidia.com)"
    assert gpu_report([node("a", {"nvidia.com/gpu": "1"})], [{"spec": {"driver": "nic.example.com"}}])[0]
