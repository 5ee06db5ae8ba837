"""Service profiles in a file: what they mean, and every fault of them with its line."""

from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.loadgen.profile_file import KEYS, gain_of, interference_of, parse
from tidegate.loadgen.simulator.devices import Sharing
from tidegate.loadgen.simulator.profiles import ColdStart

GOOD = """
profiles:
  - accelerator: t4
    base: 9ms
    per-item: 5ms
    jitter: 5%
    parallel: 90%
    full-share: 40%
    width: 1
  - accelerator: v100
    times: {1: 14ms, 8: 42ms}
    exponential: true
    first: 2s
    start: {load: 4s, warm: 500ms}
    sharing: mps
    gain: {2: 1.55, 3: 1.85}
"""


def faults(text: str) -> list[tuple[str, int | None]]:
    with pytest.raises(InvalidInputError) as caught:
        parse(text, source="profiles.yaml")
    return [(fault.where, fault.line) for fault in caught.value.faults]


def test_a_profile_is_what_it_says() -> None:
    found = parse(GOOD, source="profiles.yaml")
    t4, v100 = found["t4", ""], found["v100", ""]
    assert t4.profile.nominal(4) == pytest.approx(0.029)
    assert t4.profile.nominal(4, share=20) == pytest.approx(0.058)
    assert (t4.profile.jitter, t4.profile.parallel, t4.profile.width) == (0.05, 0.9, 1)
    assert (t4.start, t4.sharing, t4.gain) == (None, Sharing.EXCLUSIVE, {})
    assert v100.profile.nominal(1) == pytest.approx(0.014)
    assert v100.profile.nominal(4) == pytest.approx(0.026)
    assert (v100.profile.is_exponential, v100.profile.first_s) == (True, 2.0)
    assert v100.start == ColdStart(load_s=4.0, warm_s=0.5)
    assert (v100.sharing, v100.gain) == (Sharing.MPS, {2: 1.55, 3: 1.85})


def test_every_fault_is_reported_with_its_line() -> None:
    text = """profiles:
  - accelerator: t4
    base: 9
    jiter: 5%
  - times: {0: 1ms, 2: x}
    base: 1ms
  - accelerator: v100
    base: 1ms
    gain: {2: 1.5}
    jitter: 5%
    exponential: true
    start: {boot: 1s}
  - accelerator: a100
  - t4
"""
    assert faults(text) == [
        ("profiles[0].base", 3),
        ("profiles[0].jiter", 4),
        ("profiles[1].times.0", 5),
        ("profiles[1].times.2", 5),
        ("profiles[1].accelerator", 5),
        ("profiles[1].base or times", 5),
        ("profiles[2].jitter", 7),
        ("profiles[2].gain", 7),
        ("profiles[2].start.boot", 12),
        ("profiles[3].base or times", 13),
        ("profiles[4]", 14),
    ]


def test_an_accelerator_has_one_profile_and_a_file_has_one_at_least() -> None:
    entry = "  - {accelerator: t4, base: 1ms}\n"
    assert faults(f"profiles:\n{entry}{entry}") == [("profiles[1].accelerator", 3)]
    assert faults("profiles: []\n") == [("profiles", 1)]
    assert faults("") == [("document", None)]
    assert faults("a: 1\n---\nb: 2\n") == [("document", None)]
    assert faults("- 1\n") == [("", 1)]


def test_the_example_in_the_docs_is_one() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "inside" / "simulator.md").read_text()
    found = parse(page.split("```yaml\n")[1].split("```")[0], source="docs/inside/simulator.md")
    assert list(found)[:2] == [("t4", ""), ("v100", "")]
    assert all(f"`{row.key}`" in page or f"{row.key}:" in page for row in KEYS)


def test_a_function_has_its_own_times_where_an_entry_names_it() -> None:
    text = (
        GOOD
        + """  - accelerator: v100
    function: bert
    base: 80ms
    variation: 15%
    interference: {resnet: 1.18}
"""
    )
    found = parse(text, source="profiles.yaml")
    bert = found["v100", "bert"]
    assert bert.profile.nominal(1) == pytest.approx(0.08)
    assert bert.profile.variation == 0.15
    assert bert.sharing is Sharing.MPS, "the accelerator's, which another entry states"
    assert gain_of(found, "v100") == {2: 1.55, 3: 1.85}
    assert interference_of(found, "v100") == {("bert", "resnet"): 1.18}
    assert interference_of(found, "t4") == {}


def test_tables_are_neither_empty_nor_out_of_order() -> None:
    text = """profiles:
  - {accelerator: a, times: {}}
  - {accelerator: b, times: {1: 9ms, 16: 90ms, 8: 50ms}}
  - {accelerator: c, base: 1ms, sharing: mps, gain: {4: 1.5, 2: 1.25}}
  - {accelerator: d, base: 1ms, sharing: mps, gain: {}}
  - {accelerator: e, times: {4: -3ms, 2: 9}}
"""
    assert faults(text) == [
        ("profiles[0].times", 2),
        ("profiles[1].times.8", 3),
        ("profiles[2].gain.2", 4),
        ("profiles[3].gain", 5),
        ("profiles[4].times.4", 6),
        ("profiles[4].times.2", 6),
    ]


def test_entries_of_one_accelerator_agree() -> None:
    text = """profiles:
  - {accelerator: v100, base: 1ms, sharing: mps, gain: {2: 1.5}}
  - {accelerator: v100, function: a, base: 1ms, sharing: exclusive}
  - {accelerator: v100, function: b, base: 1ms, gain: {2: 1.6}}
  - {accelerator: v100, function: b, base: 1ms}
  - {accelerator: v100, base: 1ms, interference: {b: 1.1}}
  - {accelerator: t4, function: b, base: 1ms, interference: {a: 0.5, "A b": 2}}
  - {accelerator: t4, function: c, base: 1ms, interference: {a: 1.5}}
"""
    assert faults(text) == [
        ("profiles[1].sharing", 3),
        ("profiles[2].gain", 4),
        ("profiles[3].accelerator", 5),
        ("profiles[4].interference", 6),
        ("profiles[5].interference.a", 7),
        ("profiles[5].interference.A b", 7),
        ("profiles[6].interference", 8),
    ]


def test_tokens_take_their_time() -> None:
    text = "profiles:\n  - {accelerator: h100, base: 150ms, per-prompt-token: 0.1ms, per-completion-token: 12ms}\n"
    profile = parse(text, source="profiles.yaml")["h100", ""].profile
    assert profile.nominal(1) + profile.of_tokens(1000, 100) == pytest.approx(1.45)


MEASURED = """
profiles:
  - accelerator: cpu
    times: {1: 9ms}
    memory: 180MB
    measured:
      - {batch: 1, cores: 2, TIMES, rate: 110.5, requests: 900}
      - {batch: 1, TIMES, rate: 110.5, requests: 900}
""".replace("TIMES", "execution: 9ms, p50: 9ms, p95: 11ms, p99: 14ms, slots: 4, full-execution: 36ms")


def test_measured_points_are_read() -> None:
    entry = parse(MEASURED, source="profiles.yaml")["cpu", ""]
    assert entry.memory_bytes == 180_000_000
    assert [(each.cell.cores, each.cell.batch, each.rate_ips, each.slots) for each in entry.measured] == [
        (2, 1, 110.5, 4),
        (0, 1, 110.5, 4),
    ]


def test_every_fault_of_measured_points_has_its_line() -> None:
    bad = MEASURED.replace("execution: 9ms, p50: 9ms", "execution: -9ms, p50: 0s").replace("slots: 4, ", "")
    bad = bad.replace("cores: 2", "cores: 2, speed: 3").replace("180MB", "much")
    where = "profiles[0].measured"
    wrong = [(f"{where}[{index}].{key}", 7 + index) for index in (0, 1) for key in ("execution", "p50", "slots")]
    assert sorted(faults(bad)) == sorted([("profiles[0].memory", 5), (f"{where}[0].speed", 7), *wrong])
    twice = MEASURED.replace("cores: 2, ", "")
    assert faults(twice) == [(f"{where}[1]", 8)]
