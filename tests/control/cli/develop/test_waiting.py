"""What the wait of a deploy reports beside its function."""

from dataclasses import replace

from tests.control.api.test_summary import REVISION, VIEW
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.control.cli.develop.waiting import displaced
from tidegate.control.views.functions import FunctionView


def gave_up(to: str, asleep_s: float | None) -> FunctionView:
    given = reason("place_given_up", f"to {to}: its first start; last used 40 s ago")
    return replace(VIEW, revisions=(replace(REVISION, reasons=(given,), asleep_s=asleep_s),))


def test_a_function_whose_idle_replica_was_taken_is_named_and_one_of_before_is_not() -> None:
    line = "echo gave up an idle replica for new (last used 40 s ago); its next request starts it"
    assert displaced([VIEW, gave_up("new", 1.0)], "new", 5.0) == [line]
    assert displaced([gave_up("new", None)], "new", 5.0) == [line], "its last replica is ending"
    assert displaced([gave_up("new", 60.0), gave_up("other", 1.0), VIEW], "new", 5.0) == []
