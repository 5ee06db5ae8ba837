"""``accelerators.yaml``: the documented example, what it means, and every fault with its line."""

import pytest

from tidegate.deploy.devices.declared import KEYS, PROFILE_KEYS, Declared, parse
from tidegate.deploy.placement.ledger import AcceleratorKind, Profile
from tidegate.errors import InvalidInputError

EXAMPLE = """\
accelerators:
  - name: cpu-1core
    kind: cpu                          # cpu | nvidia | emulated
    cores: 1
    count: 2
    memory: 4Gi
    price-per-hour: 0.04
  - name: v100
    kind: emulated
    count: 4
    memory: 16Gi
    price-per-hour: 3.06
    start-up: 5s
    profile: {base: 9.05ms, per-item: 5.53ms, jitter: 5%}
"""


def faults_of(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(InvalidInputError) as caught:
        parse(text, source="accelerators.yaml")
    return [(fault.line, fault.where) for fault in caught.value.faults]


def test_the_documented_example() -> None:
    cpu, v100 = parse(EXAMPLE, source="accelerators.yaml")
    assert cpu == Declared(
        name="cpu-1core", kind=AcceleratorKind.CPU, cores=1, count=2, memory_bytes=4 << 30, price_per_hour=0.04
    )
    assert v100.kind is AcceleratorKind.EMULATED
    assert (v100.count, v100.memory_bytes, v100.price_per_hour, v100.start_up_s) == (4, 16 << 30, 3.06, 5.0)
    assert v100.profile == Profile(base_s=0.00905, per_item_s=0.00553, jitter=0.05)


def test_facts_about_hardware() -> None:
    (gpu,) = parse(
        "accelerators: [{name: h100, kind: nvidia, price-per-hour: 2.5, sm-count: 132, bandwidth: 3350, tdp: 700,"
        " mps: true, mig: false}]",
        source="x",
    )
    assert (gpu.sm_count, gpu.bandwidth_gb_s, gpu.tdp_w, gpu.mps, gpu.mig) == (132, 3350.0, 700.0, True, False)
    assert (gpu.count, gpu.memory_bytes) == (None, None), "the machine knows"


def test_all_faults_at_once_each_with_its_line() -> None:
    text = """\
accelerators:
  - name: V100
    kind: gpu
    cunt: 3
  - name: a
    kind: emulated
    cores: 3
    profile: {per-item: 3}
  - name: a
    kind: cpu
    start-up: 3s
  - 7
prices: {}
"""
    assert faults_of(text) == [
        (2, "accelerators[0].name"),
        (3, "accelerators[0].kind"),
        (4, "accelerators[0].cunt"),
        (5, "accelerators[1].count"),
        (5, "accelerators[1].memory"),
        (7, "accelerators[1].cores"),
        (8, "accelerators[1].profile.per-item"),
        (8, "accelerators[1].profile.base"),
        (9, "accelerators[2].name"),
        (11, "accelerators[2].start-up"),
        (12, "accelerators[3]"),
        (13, "prices"),
    ]


@pytest.mark.parametrize(
    "text",
    ["", "accelerators: []", "accelerators:", "accelerators: 3", "[]", "a: 1\n---\nb: 2", "accelerators: [", "7"],
)
def test_something_else_than_a_list_is_a_fault(text: str) -> None:
    assert faults_of(text)


@pytest.mark.parametrize("entry", ["count: 0", "count: -1", "memory: 4GiB2", "price-per-hour: -1", "cores: 1.5"])
def test_bounds(entry: str) -> None:
    key = entry.partition(":")[0]
    assert faults_of(f"accelerators: [{{name: a, kind: cpu, {entry}}}]") == [(1, f"accelerators[0].{key}")]


def test_every_key_has_a_sentence_and_its_default_can_be_read() -> None:
    for row in (*KEYS, *PROFILE_KEYS):
        assert row.description.endswith(".")
        if row.default is not None:
            assert row.accepts(row.default)
