"""How ends of requests are counted, streams above all."""

import pytest

from tests.support.worlds.gateway_chain import ONE, Door, table


def test_the_models_own_failure_passes_and_counts_as_failed() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    failed = door.arrive()
    failed.gets_answer(100.0, 500, "tidegate-outcome: answered", "tidegate-credit: keep")
    assert (failed.status, failed.log) == (500, ["to 10.0.0.1:1"])
    assert (door.demand().failed, door.demand().groups[0].failures) == (1, 1)


def test_an_event_stream_is_measured_to_its_first_byte() -> None:
    door = Door(table(1, ONE, latency_s=0.2))
    door.ready(ONE, 1)
    stream = door.arrive()
    stream.first_byte = 100.1
    stream.gets_answer(103.0, 200, "content-type: text/event-stream", length=None)
    assert door.demand().within_sla == 1
    assert door.demand().streaming == 0


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_stream_that_goes_on_is_reported_as_such(ends_well: bool) -> None:
    door = Door(table(1, ONE, latency_s=0.2))
    door.ready(ONE, 1)
    stream = door.arrive()
    assert door.demand().streaming == 0
    stream.gets_answer(100.1, 200, "content-type: text/event-stream", length=None, ends=False)
    assert door.demand().streaming == 1
    if ends_well:
        stream.ends(103.0)
    else:
        stream.client_leaves(103.0)
    assert door.demand().streaming == 0
