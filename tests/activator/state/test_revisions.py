"""The activation signal is a level: sent at once, repeated while it holds, sent at once when it rises again."""

from tidegate.activator.state.revisions import REPEAT_S, ActivationSignal


def test_reported_at_once_and_repeated() -> None:
    signal = ActivationSignal()
    assert signal.update(True, 10.0)
    assert not signal.update(True, 10.0 + REPEAT_S / 2)
    assert signal.update(True, 10.0 + REPEAT_S)
    assert not signal.update(True, 10.0 + REPEAT_S)


def test_at_rest_nothing_is_reported_and_a_new_rise_is_reported_at_once() -> None:
    signal = ActivationSignal()
    assert signal.update(True, 10.0)
    assert not signal.update(False, 10.01)
    assert signal.update(True, 10.02)
