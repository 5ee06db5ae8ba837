"""Variants of a model in the simulator: the same choice as in the gateway."""

import pytest

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, run
from tidegate.loadgen.simulator.scenario import Scenario
from tidegate.records.route_table import ModelVariant


@pytest.mark.parametrize(("loss", "served"), [(4.0, ["large", "small"]), (2.0, ["large", "large"])])
def test_a_request_that_finds_no_free_slot_is_served_by_a_variant_within_its_loss(
    loss: float, served: list[str]
) -> None:
    variants = [
        function(name, variant=ModelVariant(family="m", accuracy=accuracy, loss=loss))
        for name, accuracy in (("large", 78.0), ("small", 75.0))
    ]
    scenario = Scenario(
        kinds=(kind(count=2),),
        functions=tuple(deployed(fixed(1.0), of=each) for each in variants),
        arrivals=[Arrival(1.0, function="small"), Arrival(10.0, function="large"), Arrival(10.1, function="large")],
        keeps_scale=True,
    )
    result, sink = run(scenario)
    assert [request[1].removesuffix("-00001") for request, *_ in sorted(sink.ended)][1:] == served
    assert result.switched == ({("large", "small"): 1} if served[1] == "small" else {})
