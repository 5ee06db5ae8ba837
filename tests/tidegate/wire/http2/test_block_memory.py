"""The cache of blocks: what occurs twice is kept, in bounded memory."""

from tidegate.wire.http2.block_memory import Memory


def test_an_entry_is_kept_from_its_second_occurrence_on() -> None:
    memory: Memory[int] = Memory()
    memory.keep(b"a", 1)
    assert memory.known == {}
    memory.keep(b"a", 2)
    memory.keep(b"b", 3)
    assert memory.known == {b"a": 2}
    assert repr(memory) == "<Memory 1 kept>"


def test_a_thousand_and_some_entries_are_kept_and_then_none() -> None:
    memory: Memory[int] = Memory()
    for number in range(1024):
        for _ in range(2):
            memory.keep(b"%d" % number, number)
    assert len(memory.known) == 1024
    memory.keep(b"0", 0)
    assert len(memory.known) == 1, "one more begins again"


def test_unique_entries_evict_nothing_and_their_marks_are_bounded() -> None:
    memory: Memory[int] = Memory()
    for _ in range(2):
        memory.keep(b"kept", 1)
    for number in range(4095):
        memory.keep(b"%d" % number, number)
    assert len(memory._once) == 4096
    memory.keep(b"another", 1)
    assert len(memory._once) == 1
    for number in range(20_000):
        memory.keep(b"%d" % number, number)
        assert len(memory._once) <= 4096
    assert memory.known == {b"kept": 1}
