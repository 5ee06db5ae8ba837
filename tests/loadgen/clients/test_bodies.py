"""The shape that a body states is the number of values it has."""

import json

from loadgen.clients.bodies import v2_body


def test_the_first_dimension_is_the_number_of_inferences() -> None:
    for count in (1, 64):
        (tensor,) = json.loads(v2_body(count))["inputs"]
        assert tensor["shape"] == [count, 1]
        assert len(tensor["data"]) == count
