"""What a deploy says of the capacity and the cost of an SLA."""

import pytest

from tidegate.control.cli.deploy import _capacity
from tidegate.control.views.functions import CapacityKindView, CapacityView, SlaCostView


def said(replicas: int, places: int) -> str:
    """Returns the last line, for 200 ms and half of it, which no accelerator meets."""
    kind = CapacityKindView(
        accelerator="cpu",
        emulated=False,
        source="learnt",
        one_s=0.15,
        meets_latency=True,
        mu_ips=6.0,
        places=places,
        free=0,
        price_per_hour=0.5,
    )
    costs = (
        SlaCostView(
            latency_s=0.2,
            requests_per_s=6.667,
            accelerator="cpu",
            replicas=replicas,
            price_per_hour=0.5 * replicas,
        ),
        SlaCostView(latency_s=0.1, requests_per_s=6.667, accelerator=None, replicas=0, price_per_hour=0.0),
    )
    view = CapacityView(
        latency_s=0.2,
        target_ips=None,
        kinds=(kind,),
        provided={},
        provided_ips=None,
        price_per_hour=0.5,
        sla_costs=costs,
    )
    return _capacity(view)[-1]


@pytest.mark.parametrize(
    ("places", "beyond"), [(2, ", which has 2 places"), (1, ", which has 1 place"), (5, ""), (9, "")]
)
def test_the_cost_of_an_sla_says_where_there_are_not_so_many_places(places: int, beyond: str) -> None:
    assert said(5, places) == (
        f"at the load so far, 6.67 requests/s: 200 ms for 2.5 an hour (5 cpu{beyond}); "
        "no accelerator is known to meet 100 ms"
    )
