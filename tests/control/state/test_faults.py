"""What does not work is said once in the log and shown until it works."""

import logging

import pytest

from tidegate.control.state.faults import Faults


def test_a_fault_stays_until_it_is_cleared(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    with caplog.at_level(logging.WARNING):
        faults.set("store", "disk full")
        faults.set("store", "disk full")
        faults.set("gateway", "died")
        assert faults.texts() == ("gateway: died", "store: disk full")
        faults.clear("store")
        faults.clear("store")
    assert faults.texts() == ("gateway: died",)
    assert [record.getMessage() for record in caplog.records] == [
        "store: disk full",
        "gateway: died",
        "store: works again",
    ]
