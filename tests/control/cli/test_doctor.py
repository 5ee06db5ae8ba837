"""Checks of ``tidegate doctor`` that look at records alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.local.test_records import details, record
from tidegate.control.cli.doctor import CheckVerdict, _open_ports
from tidegate.control.state.directory import StateDirectory
from tidegate.deploy.local.records import ProcessKind, RecordStore


@pytest.mark.parametrize(
    ("upstream", "verdict", "text"),
    [
        ("127.0.0.1:4711", CheckVerdict.NOTE, "can call f-00001-aaaaa at 127.0.0.1:4711, past queue_proxy"),
        ("unix:/run/m", CheckVerdict.OK, "no model server listens on a TCP port"),
        (None, CheckVerdict.OK, "no model server listens on a TCP port"),
    ],
)
def test_model_servers_on_ports_are_named(
    tmp_path: Path, upstream: str | None, verdict: CheckVerdict, text: str
) -> None:
    state = StateDirectory(tmp_path / "state")
    if upstream is not None:
        state.prepare()
        of = replace(details("f-00001-aaaaa"), upstream=upstream)
        store = RecordStore(state.processes)
        for kind in (ProcessKind.MODEL_SERVER, ProcessKind.QUEUE_PROXY):
            store.write(record(kind, of))
    found = _open_ports(state)
    assert found[0] is verdict
    assert text in found[1]
