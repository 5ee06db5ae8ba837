"""Recordings: what a ring keeps, what its files keep, and that both stay within their bounds."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.worlds.autoscaling import T0, activation, group, observation, revision
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.replay.player import again
from tidegate.autoscaler.replay.recorder import Recorder
from tidegate.autoscaler.replay.recording import Header, Step, read
from tidegate.errors import Fault
from tidegate.function import Revision, Scaling

SPEC = revision(scaling=Scaling(policy="kpa"))


def run(recorder: Recorder, seconds: range, spec: Revision = SPEC, decider: Decider | None = None) -> Decider:
    """A second each: observed, decided, recorded."""
    if decider is None:
        decider = Decider()
        decider.apply(spec, T0 + seconds.start)
    for second in seconds:
        now = T0 + second
        seen = observation(group(ready=1, sampled=1), at=now, revision=spec.id, concurrency=second % 7 / 2.0)
        part = recorder.part(spec, decider, now)
        assert part is not None
        part.add(seen, decider.tick(now, seen))
        asyncio.run(recorder.flush())
    return decider


def lines(recorder: Recorder, revision_id: str = SPEC.id) -> list[Header | Step]:
    faults: list[Fault] = []
    text = b"".join(asyncio.run(recorder.lines(revision_id))).decode().splitlines()
    found = [line for _, line in read(text, faults)]
    assert found == [] or not faults
    return found


def seconds(found: list[Header | Step]) -> list[int]:
    return [round(line.observation.at - T0) for line in found if isinstance(line, Step)]


def test_without_a_directory_the_present_part_is_what_there_is() -> None:
    recorder = Recorder(None, part_figures=10)
    run(recorder, range(35))
    found = lines(recorder)
    assert isinstance(found[0], Header)
    assert seconds(found) == list(range(35 - len(found) + 1, 35))
    assert len(found) <= 11


def test_parts_on_disk_and_in_memory_are_one_recording(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, part_figures=10)
    run(recorder, range(35))
    found = lines(recorder)
    assert seconds(found) == list(range(35))
    headers = [line for line in found if isinstance(line, Header)]
    assert [each.part for each in headers] == list(range(1, 1 + len(headers)))
    assert recorder.recorded("resnet") == [SPEC.id]
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_recording_goes_on_after_a_restart(tmp_path: Path) -> None:
    first = Recorder(tmp_path, part_figures=10)
    run(first, range(15))
    first.close()
    second = Recorder(tmp_path, part_figures=10)
    run(second, range(20, 30))
    found = lines(second)
    assert seconds(found) == [*range(15), *range(20, 30)]
    assert [line.part for line in found if isinstance(line, Header)].count(1) == 2, "control began twice"


def test_a_group_counts_for_the_room_of_a_part() -> None:
    recorder, decider = Recorder(None, part_figures=40), Decider()
    decider.apply(SPEC, T0)
    wide = observation(*(group(f"kind{index}") for index in range(10)))
    for second in range(50):
        part = recorder.part(SPEC, decider, T0 + second)
        assert part is not None
        seen = structs.replace(wide, at=T0 + second)
        part.add(seen, decider.tick(seen.at, seen))
        assert len(part.steps) <= 4


def test_files_stay_within_their_bounds(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, part_figures=4, file_bytes=4000, total_bytes=30_000)
    specs = [revision(number) for number in range(1, 12)]
    for spec in specs:
        run(recorder, range(120), spec)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 30_000 + 60 * 2000
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert max(sizes.values()) < 4000 + 2000
    assert specs[-1].id + ".ndjson.gz" in sizes, "the newest is kept"
    assert specs[0].id + ".ndjson.gz" not in sizes, "the oldest gave way"
    assert seconds(lines(recorder, specs[-1].id))[-1] == 119


def test_what_is_too_much_at_a_time_is_left_out_and_the_rest_still_replays(tmp_path: Path) -> None:
    """Six revisions fill twenty-four steps of parts in four seconds, of which six are written."""
    recorder = Recorder(tmp_path, part_figures=4, flush_figures=6)
    deciders = [(revision(number), Decider()) for number in range(1, 7)]
    for spec, decider in deciders:
        decider.apply(spec, T0)
    for second in range(800):
        for spec, decider in deciders:
            seen = observation(group(ready=1, sampled=1), at=T0 + second, revision=spec.id, concurrency=second % 9 / 2)
            part = recorder.part(spec, decider, seen.at)
            decision = decider.tick(seen.at, seen)
            if part is not None:
                part.add(seen, decision)
        if second % 4 == 0:
            asyncio.run(recorder.flush())
    recorder.close()
    counts = []
    for spec, _ in deciders:
        text = b"".join(asyncio.run(recorder.lines(spec.id))).decode().splitlines()
        played = again([*read(text, [])])
        assert played.difference is None
        counts.append(played.compared)
    assert sum(counts) < 4800 / 2
    assert min(counts) > 20, "none starves for the others"


def test_a_full_disk_stops_the_recording_and_nothing_else(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    recorder = Recorder(blocked, part_figures=4)
    run(recorder, range(20))
    assert recorder.fault is not None
    assert "file" in recorder.fault
    assert len(lines(recorder)) <= 5


def test_a_cut_file_gives_what_is_whole(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, part_figures=10)
    run(recorder, range(40))
    recorder.close()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    kept = seconds(lines(recorder))
    assert kept == list(range(len(kept)))
    assert 25 <= len(kept) < 40


def test_environment_secrets_and_arguments_are_not_recorded() -> None:
    server = replace(SPEC.function.server, argv=("serve", "--password=y"))
    function = replace(SPEC.function, env={"TOKEN": "x"}, secrets={"KEY": "/run/key"}, server=server)
    spec = replace(SPEC, function=function)
    recorder = Recorder(None)
    run(recorder, range(1), spec)
    text = b"".join(asyncio.run(recorder.lines(spec.id)))
    assert b"TOKEN" not in text
    assert b"/run/key" not in text
    assert b"password" not in text


def test_activations_are_steps() -> None:
    recorder, decider = Recorder(None), Decider()
    decider.apply(SPEC, T0)
    seen = observation(at=T0)
    part = recorder.part(SPEC, decider, T0)
    assert part is not None
    part.add(seen, decider.activate(activation(), T0, seen), activation())
    (step,) = [line for line in lines(recorder) if isinstance(line, Step)]
    assert step.activation == activation()
    assert step.decision is not None
    assert step.decision.desired == 1


def test_a_forgotten_revision_keeps_its_recording(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    run(recorder, range(5))
    recorder.forget(SPEC.id)
    assert seconds(lines(recorder)) == list(range(5))
    asyncio.run(recorder.flush())
    assert seconds(lines(recorder)) == list(range(5))


@pytest.fixture(autouse=True)
def _no_loop_is_left() -> Iterator[None]:
    yield
    asyncio.set_event_loop(None)
