"""CPU use of replicas: differences over time and cores, and nothing where nothing can be read."""

from dataclasses import replace

import pytest

from tidegate.control.watch.cpus import Cpus
from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.replica_state import ReplicaState

ONE = ReplicaStatus(
    id="f-00001-aaaaa",
    function="f",
    revision="f-00001",
    accelerator="cpu",
    state=ReplicaState.READY,
    address="unix:/x",
    admin="unix:/y",
    created_at=0.0,
    pids=(10, 11),
    cores=(0, 1),
)
TWO = replace(ONE, id="f-00001-bbbbb", pids=(20,), cores=(), threads=None)


def test_a_group_is_the_mean_of_its_ready_replicas() -> None:
    used = {10: 1.0, 11: 2.0, 20: 5.0}
    cpus = Cpus(used.get)
    cpus.measure([ONE, TWO], 100.0)
    assert cpus.metrics("f-00001", "cpu") == {}, "one reading tells nothing"
    used.update({10: 1.5, 11: 2.5, 20: 5.9})
    cpus.measure([ONE, TWO], 101.0)
    assert cpus.metrics("f-00001", "cpu") == pytest.approx({"cpu": 70.0}), "50 % of two cores, 90 % of one"
    cpus.measure([ONE, TWO], 101.1)
    assert cpus.metrics("f-00001", "cpu") == pytest.approx({"cpu": 70.0}), "too soon to be read anew"


def test_processes_that_are_gone_or_new_tell_nothing() -> None:
    used: dict[int, float] = {10: 1.0}
    cpus = Cpus(used.get)
    for now in (1.0, 2.0):
        cpus.measure([ONE, replace(TWO, state=ReplicaState.STARTING)], now)
        assert cpus.metrics("f-00001", "cpu") == {}
    used.update({11: 9.0})
    cpus.measure([ONE], 3.0)
    used.update({10: 0.0, 11: 0.0})
    cpus.measure([ONE], 4.0)
    assert cpus.metrics("f-00001", "cpu") == {}, "less than before: another process"
    assert "0 replicas" in repr(cpus)
