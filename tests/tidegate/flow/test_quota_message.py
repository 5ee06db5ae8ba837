"""The exchange about quotas survives the way between two processes; invalid bytes are refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.flow.quota import Budget, QuotaAnswer, QuotaGrant, QuotaReport
from tidegate.flow.quota_message import decode_answer, decode_exchange, encode_answer, encode_exchange
from tidegate.records.codec import CodecError

AMOUNT = st.integers(0, 2**50)
BUDGETS = st.builds(
    Budget, st.text(max_size=40), AMOUNT, st.sampled_from([1.0, 60.0, 0.5, math.inf]), st.sampled_from([0.5, 300.0])
)
REPORTS = st.lists(st.builds(QuotaReport, BUDGETS, st.integers(0, 2**40), AMOUNT, AMOUNT), max_size=5).map(tuple)


@given(member=st.text(min_size=1, max_size=128), reports=REPORTS)
def test_reports_arrive_as_they_were_sent(member: str, reports: tuple[QuotaReport, ...]) -> None:
    assert decode_exchange(encode_exchange(member, reports)) == (member, reports)


def test_a_report_of_an_older_worker_is_held_as_long_as_by_default() -> None:
    data = b'{"member":"a","reports":[{"key":"k","amount":1,"window_s":null,"window":0,"used":1,"want":1}]}'
    assert decode_exchange(data)[1][0].budget == Budget("k", 1)


@given(
    grants=st.lists(st.builds(QuotaGrant, AMOUNT, AMOUNT, AMOUNT), max_size=5).map(tuple),
    time=st.floats(0, 1e12),
    is_part=st.booleans(),
    is_new=st.booleans(),
)
def test_answers_arrive_as_they_were_sent(
    grants: tuple[QuotaGrant, ...], time: float, is_part: bool, is_new: bool
) -> None:
    answer = QuotaAnswer(grants, time, 4, is_part, is_new)
    assert decode_answer(encode_answer(answer), len(grants)) == answer
    with pytest.raises(CodecError):
        decode_answer(encode_answer(answer), len(grants) + 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"member":"","reports":[]}',
        b'{"member":"%b","reports":[]}' % (b"a" * 129),
        b'{"member":"a","reports":[{"key":"k","amount":-1,"window_s":1,"window":1,"used":1,"want":1}]}',
        b'{"member":"a","reports":[{"key":"k","amount":1,"window_s":0,"window":1,"used":1,"want":1}]}',
        b'{"member":"a","reports":[{"key":"k"}]}',
    ],
)
def test_what_is_no_exchange(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_exchange(data)
