"""Logs of children stay small, and a cut says what it dropped."""

from pathlib import Path

from tidegate.deploy.local.logs import cut_number, kept_part, tail, trim


def test_a_cut_keeps_the_newest_whole_lines_and_says_what_it_dropped(tmp_path: Path) -> None:
    log = tmp_path / "a.server.log"
    log.write_bytes(b"".join(b"%03d\n" % number for number in range(100)))
    assert not trim(log, 400)
    assert cut_number(log) == 0
    assert kept_part(log) is None
    assert trim(log, 399)
    assert log.read_bytes() == b""
    kept = kept_part(log)
    assert kept is not None
    assert (kept.number, kept.start, kept.data[:4], kept.data[-4:]) == (1, 204, b"051\n", b"099\n")
    assert kept.head == b"-- tidegate: cut 1, 204 bytes before this line are lost\n"
    log.write_bytes(b"x" * 1000)
    assert trim(log, 100)
    assert kept_part(log) == (2, 950, b"-- tidegate: cut 2, 950 bytes before this line are lost\n", b"x" * 50)
    assert (tmp_path / "a.server.log.1").stat().st_mode & 0o777 == 0o600


def test_the_last_lines_of_a_process_are_found_behind_a_cut(tmp_path: Path) -> None:
    log = tmp_path / "a.server.log"
    log.write_bytes(b"many\n" * 50 + b"the reason\n")
    trim(log, 100)
    assert tail(log, 1) == ["the reason"]
    assert tail(log, 1, since=20) == ["the reason"]
    log.write_bytes(b"earlier run\n")
    assert tail(log, 1, since=12) == []
