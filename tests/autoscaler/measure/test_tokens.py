"""Rates in tokens: what arrives, what was done, and what a replica can do when sizes change."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tests.support.worlds.autoscaling import T0, demand, gateway_sample, group, replica_sample, revision
from tidegate.autoscaler.decider import figures
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup, Observation
from tidegate.autoscaler.measure.tokens import MAX_GROUPS, SLOTS, TokenMeter
from tidegate.records.codec import decode, encode
from tidegate.records.gateway_sample import GroupTokens, GroupTraffic, TokensSeen

REVISION = revision()
A = "resnet-00001-aaaaa"


class Service:
    """One replica of one slot behind one gateway that reports every second."""

    def __init__(self) -> None:
        self.collector = Collector()
        self.collector.expect(["g0"], [A])
        self.collector.apply(REVISION.id, T0)
        self.second = 0
        self.requests = self.prompt = self.completion = 0
        self.arrived = 0
        self.busy_s = 0.0
        self.tell(0, 0, 0)

    def tell(self, rps: int, prompt: int, completion: int, busy: float = 1.0) -> None:
        """A second with ``rps`` requests of this size; the replica has work for ``busy`` of it."""
        self.second += 1
        self.requests += rps
        self.prompt += rps * prompt
        self.completion += rps * completion
        self.arrived += rps * (prompt + completion)
        self.busy_s += busy if rps else 0.0
        seen = TokensSeen(
            arrived=self.arrived,
            prompt=self.prompt,
            completion=self.completion,
            groups=(
                GroupTokens(group="cpu", inferences=self.requests, prompt=self.prompt, completion=self.completion),
            ),
        )
        traffic = GroupTraffic(group="cpu", requests=self.requests, inferences=self.requests, failures=0)
        report = demand(
            arrivals=self.requests,
            arrivals_inferences=self.requests,
            answered=self.requests,
            tokens=seen,
            groups=(traffic,),
        )
        sample = replica_sample(
            A,
            sequence=self.second,
            uptime_s=float(self.second),
            requests=self.requests,
            inferences=self.requests,
            busy_s=self.busy_s,
            in_flight_request_s=self.busy_s,
            in_flight_inference_s=self.busy_s,
            execution_s=self.busy_s,
        )
        now = T0 + self.second
        self.collector.replica(sample, now)
        assert self.collector.gateway(gateway_sample(report, sequence=self.second, uptime_s=float(self.second)), now)

    def look(self) -> Observation:
        return self.collector.observe(REVISION, (FleetGroup(accelerator="cpu", ready=(A,)),), T0 + self.second)


def test_lambda_throughput_and_mu_in_tokens() -> None:
    world = Service()
    for _ in range(30):
        world.tell(20, 100, 50)
    seen = world.look()
    assert seen.tokens is not None
    assert seen.lambda_ips == pytest.approx(20.0)
    assert seen.tokens.lambda_tps == pytest.approx(3000.0)
    assert seen.tokens.prompt_tps == pytest.approx(2000.0)
    assert seen.tokens.completion_tps == pytest.approx(1000.0)
    assert seen.tokens.per_inference == pytest.approx(150.0)
    cpu = seen.tokens.groups["cpu"]
    assert cpu.tps == pytest.approx(3000.0)
    assert cpu.mu_tps == pytest.approx(3000.0, rel=0.02)
    assert seen.groups[0].mu_ips == pytest.approx(20.0, rel=0.02)
    reported = figures(seen)
    assert reported["lambda_tps"] == pytest.approx(3000.0)
    assert reported["mu_tps_cpu"] == cpu.mu_tps


def test_the_time_per_output_token_is_kept_by_the_streams_at_a_time() -> None:
    """Each stream of three takes 20 ms a token; alone one takes 10 ms. Without such a target nothing is reported."""
    meter, seen, now = TokenMeter(), TokensSeen(), T0
    between, between_s, inferences = 0, 0.0, 0
    busy = group("cpu")
    for concurrency, pace_s in ((3.0, 0.020), (1.0, 0.010)):
        busy = group("cpu", ready=1, busy=1.0, concurrency=concurrency)
        for _ in range(60):
            now += 1.0
            meter.rates([busy], now)
            inferences, between, between_s = inferences + 1, between + 50, between_s + 50 * pace_s
            tokens = GroupTokens(
                group="cpu", inferences=inferences, prompt=0, completion=51 * inferences, streams=inferences,
                first_s=0.1 * inferences, between=between, between_s=between_s,
            )  # fmt: skip
            before, seen = seen, TokensSeen(groups=(tokens,))
            assert meter.note(seen, before, now, lambda _: None)
    found = meter.rates([busy], now, is_paced=True).groups["cpu"]
    assert isinstance(found.pace, tuple)
    (alone, alone_s), *_, (three, three_s) = found.pace
    assert [alone, three] == pytest.approx([1.0, 3.0], abs=0.1)
    assert [alone_s, three_s] == pytest.approx([0.010, 0.020], rel=0.1)
    assert found.between == pytest.approx(50.0)
    plain = meter.rates([busy], now).groups["cpu"]
    assert b"pace" not in encode(plain)
    assert meter.rates([busy], now + 7200.0, is_paced=True).groups["cpu"].pace is UNSET, "what is not seen is forgotten"


def test_one_answer_that_tells_nonsense_is_no_size() -> None:
    world = Service()
    for _ in range(30):
        world.tell(20, 100, 50)
    world.tell(1, 1 << 26, 50)
    seen = world.look().tokens
    assert seen is not None and seen.per_inference == pytest.approx(150.0, rel=0.6)
    for _ in range(10):
        world.tell(20, 100, 50)
    seen = world.look().tokens
    assert seen is not None and seen.per_inference == pytest.approx(150.0, rel=0.25)
    for _ in range(60):
        world.tell(20, 30_000, 50)
    seen = world.look().tokens
    assert seen is not None and seen.per_inference == pytest.approx(30_050.0, rel=0.01), "a change is followed"


def test_mu_in_tokens_stands_while_small_requests_leave_the_replica_idle() -> None:
    """Sizes of light load are not those that the rate was learnt with."""
    world = Service()
    for _ in range(30):
        world.tell(10, 250, 50)
    at_the_limit = world.look().tokens
    for _ in range(240):
        world.tell(5, 20, 10, busy=0.05)
    now = world.look()
    assert at_the_limit is not None and now.tokens is not None
    assert now.tokens.per_inference == pytest.approx(30.0, rel=0.05)
    assert at_the_limit.groups["cpu"].mu_tps == pytest.approx(3000.0, rel=0.02)
    assert now.tokens.groups["cpu"].mu_tps == pytest.approx(3000.0, rel=0.05)


def test_a_full_replica_with_other_sizes_is_followed() -> None:
    world = Service()
    for size, rps in ((300, 10), (30, 100)):
        for _ in range(60):
            world.tell(rps, size, 0)
        seen = world.look().tokens
        assert seen is not None
        assert seen.groups["cpu"].mu_tps == pytest.approx(3000.0, rel=0.05)


def test_silence_counts_as_silence() -> None:
    world = Service()
    for _ in range(5):
        world.tell(20, 100, 50)
    for _ in range(SLOTS):
        world.tell(0, 0, 0)
    seen = world.look().tokens
    assert seen is not None
    assert (seen.lambda_tps, seen.prompt_tps, seen.groups["cpu"].tps) == (0.0, 0.0, 0.0)
    assert seen.per_inference == 150.0


def test_a_revision_without_tokens_has_none() -> None:
    collector = Collector()
    collector.expect(["g0"], [])
    collector.apply(REVISION.id, T0)
    for second in (1, 2):
        collector.gateway(gateway_sample(demand(arrivals=second), sequence=second, uptime_s=second), T0 + second)
    seen = collector.observe(REVISION, (), T0 + 2)
    assert seen.tokens is None
    assert not any("tps" in name for name in figures(seen))


def test_an_observation_with_tokens_survives_a_recording() -> None:
    world = Service()
    for _ in range(12):
        world.tell(20, 100, 50)
    seen = world.look()
    assert decode(encode(seen), Observation) == seen


def test_what_cannot_be_true_is_left_out_and_counted() -> None:
    world = Service()
    world.tell(20, 100, 50)
    before = world.look().tokens
    for bad in (
        TokensSeen(arrived=-1),
        TokensSeen(arrived=world.arrived - 1, prompt=world.prompt, completion=world.completion),
        TokensSeen(arrived=10**18, prompt=world.prompt, completion=world.completion),
        TokensSeen(
            arrived=world.arrived,
            prompt=world.prompt,
            completion=world.completion,
            groups=(GroupTokens(group="cpu", inferences=world.requests + 1, prompt=0, completion=0),),
        ),
    ):
        world.second += 1
        report = demand(arrivals=world.requests + 1, answered=world.requests, tokens=bad)
        world.collector.gateway(
            gateway_sample(report, sequence=world.second, uptime_s=float(world.second)), T0 + world.second
        )
        good = TokensSeen(arrived=world.arrived, prompt=world.prompt, completion=world.completion)
        world.second += 1
        report = replace(report, tokens=replace(good, groups=(_cpu(world),)))
        world.collector.gateway(
            gateway_sample(report, sequence=world.second, uptime_s=float(world.second)), T0 + world.second
        )
    assert world.collector.faults["garbage"] >= 4
    after = world.look().tokens
    assert before is not None and after is not None
    assert after.per_inference == before.per_inference


def _cpu(world: Service) -> GroupTokens:
    return GroupTokens(group="cpu", inferences=world.requests, prompt=world.prompt, completion=world.completion)


@given(
    st.lists(
        st.builds(
            TokensSeen,
            arrived=st.integers(-5, 2**70),
            prompt=st.integers(-5, 2**70),
            completion=st.integers(-5, 2**70),
            groups=st.lists(
                st.builds(
                    GroupTokens,
                    group=st.sampled_from("ab"),
                    inferences=st.integers(-5, 2**70),
                    prompt=st.integers(-5, 2**70),
                    completion=st.integers(-5, 2**70),
                ),
                max_size=3,
            ).map(tuple),
        ),
        max_size=6,
    )
)
def test_hostile_figures_leave_finite_rates(reports: list[TokensSeen]) -> None:
    meter, before = TokenMeter(), None
    for second, seen in enumerate(reports):
        meter.note(seen, before, T0 + second, lambda _: T0)
        before = seen
    rates = meter.rates([group("a", mu_ips=10.0), group("b")], T0 + len(reports))
    figures = [rates.lambda_tps, rates.prompt_tps, rates.completion_tps, rates.per_inference or 0.0]
    figures += [each.tps for each in rates.groups.values()] + [each.mu_tps or 0.0 for each in rates.groups.values()]
    assert all(0.0 <= figure < 1e20 for figure in figures)


def test_the_time_to_the_first_output_is_the_smallest_lately() -> None:
    meter, streams, first_s = TokenMeter(), 0, 0.0
    before: TokensSeen | None = None

    def tell(second: int, mean_s: float) -> float | None:
        nonlocal before, streams, first_s
        streams, first_s = streams + 10, first_s + 10 * mean_s
        cpu = GroupTokens(
            group="cpu", inferences=streams, prompt=streams, completion=0, streams=streams, first_s=first_s
        )
        seen = TokensSeen(prompt=streams, groups=(cpu,))
        assert meter.note(seen, before, T0 + second, lambda _: None)
        before = seen
        return meter.rates([group("cpu")], T0 + second).groups["cpu"].first_s

    assert tell(1, 0.2) == pytest.approx(0.2)
    assert tell(2, 0.1) == pytest.approx(0.1)
    assert tell(3, 2.0) == pytest.approx(0.106, abs=1e-3), "it waited inside the model server"
    for second in range(4, 1200):
        tell(second, 0.5)
    assert tell(1200, 0.5) == pytest.approx(0.5, rel=0.05), "a model that has become slower is believed in minutes"


def test_groups_are_bounded() -> None:
    meter = TokenMeter()
    groups = tuple(GroupTokens(group=str(n), inferences=1, prompt=1, completion=0) for n in range(2 * MAX_GROUPS))
    assert meter.note(TokensSeen(prompt=1, groups=groups), None, T0, lambda _: None)
    assert len(meter._groups) == MAX_GROUPS
