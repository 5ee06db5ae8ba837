"""What ``status NAME`` says of tokens."""

from dataclasses import replace

from tidegate.control.cli.show import tokens
from tidegate.control.views.functions import TokensView

VIEW = TokensView(
    prompt=1200,
    completion=340,
    cached=800,
    answers=12,
    estimated=0,
    arrived_per_s=0.0,
    prompt_per_s=240.0,
    completion_per_s=68.0,
    first_p50_s=0.12,
    first_tail_s=0.45,
    between_p50_s=None,
    between_tail_s=None,
)


def test_a_line_of_tokens() -> None:
    line = tokens(VIEW, 99.0)
    assert line.startswith("tokens: 1200 of prompts (800 cached), 340 of answers; first p50 ")
    assert "p99" in line
    assert "between p50 -" in line, "no stream had a second token"
    assert "3 of 12 answers estimated" in tokens(replace(VIEW, estimated=3), 99.0)
