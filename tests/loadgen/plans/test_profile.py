"""The plan of `tidegate profile`."""

from pathlib import Path

import pytest

from tidegate.errors import InvalidInputError
from tidegate.loadgen.plans.profile import ProfileOptions, plan_of
from tidegate.records.profile_point import ProfileCell


def options(folder: Path, **changes: object) -> ProfileOptions:
    return ProfileOptions(**{"to": folder / "p.yaml", "lines": folder / "p.jsonl", **changes})  # type: ignore[arg-type]


def test_cells_come_accelerator_by_accelerator_and_cores_by_cores(tmp_path: Path) -> None:
    plan = plan_of(options(tmp_path, batches="4, 1,4", cores="2,1"), ["cpu", "t4"])
    assert plan.seconds == 3.0
    assert plan.cells == tuple(
        ProfileCell(accelerator=name, cores=cores, batch=batch)
        for name in ("cpu", "t4")
        for cores in (1, 2)
        for batch in (1, 4)
    )
    assert [each.cores for each in plan_of(options(tmp_path, batches="1"), ["cpu"]).cells] == [0]


def test_a_body_has_one_size(tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_text("{}")
    assert plan_of(options(tmp_path, body=body), ["cpu"]).batches == (1,)
    with pytest.raises(InvalidInputError, match="a file has one size"):
        plan_of(options(tmp_path, body=body, batches="1,2"), ["cpu"])


def test_every_fault_is_found(tmp_path: Path) -> None:
    wrong = options(
        tmp_path,
        accelerators="cpuu",
        batches="0,x," + ",".join(str(each) for each in range(1, 40)),
        cores="1025",
        seconds="1",
        to=tmp_path / "no" / "p.yaml",
    )
    with pytest.raises(InvalidInputError) as caught:
        plan_of(wrong, ["cpu"])
    places = [each.where for each in caught.value.faults]
    assert places == ["--to", "--accelerators", "--batches", "--batches", "--batches", "--cores", "--seconds"]
    assert "did you mean `cpu`?" in str(caught.value)
