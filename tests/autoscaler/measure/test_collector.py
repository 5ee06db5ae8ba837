"""Samples in, observations out: differences, repeats, resets, garbage, silence."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, demand, function, gateway_sample, replica_sample, revision
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.gateways import PART
from tidegate.autoscaler.measure.measurements import PHASES
from tidegate.autoscaler.measure.observation import ArrivalCounts, FleetGroup, Observation
from tidegate.autoscaler.measure.sources import RESET_AFTER
from tidegate.function import Revision
from tidegate.histogram import bucket_index
from tidegate.records.gateway_sample import GroupTraffic, RevisionDemand

REVISION = revision()
A, B = "resnet-00001-aaaaa", "resnet-00001-bbbbb"


def collector(*replicas: str) -> Collector:
    made = Collector()
    made.expect(["g0"], replicas)
    made.apply(REVISION.id, T0)
    return made


def look(of: Collector, now: float, *ready: str) -> Observation:
    return of.observe(REVISION, (FleetGroup(accelerator="cpu", ready=ready),), now)


def pull(of: Collector, second: int, **values: Any) -> bool:
    """The gateway's sample of one second, counters as given."""
    return of.gateway(gateway_sample(demand(**values), sequence=second, uptime_s=float(second)), T0 + second)


def test_concurrency_is_waiting_at_gateways_plus_in_flight_at_replicas() -> None:
    c = collector(A)
    pull(c, 1)
    c.replica(replica_sample(A), T0 + 1)
    pull(c, 2, arrivals=10, arrivals_inferences=40, waiting=3, waiting_inferences=12, waiting_request_s=2.5)
    c.replica(replica_sample(A, sequence=2, uptime_s=2.0, in_flight=1, in_flight_request_s=0.75), T0 + 2)
    seen = look(c, T0 + 2, A)
    assert (seen.concurrency, seen.waiting, seen.waiting_inferences) == (3.25, 3, 12)
    assert (seen.rps, seen.complete, seen.age_s) == (10.0, True, 0.0)
    assert seen.idle_s == 0.0


def test_clients_that_give_up_before_an_answer_tell_of_no_rate_but_of_the_most_that_it_can_be() -> None:
    """A replica with eight slots that yields 5/s, overloaded: of 20 requests a second nearly all leave unanswered."""
    c = collector(A)
    counters = {"limit": 8, "in_flight": 8, "in_flight_inferences": 8, "requests": 0, "inferences": 0, "unanswered": 0}
    second = 0

    def run(seconds: int, requests: int, unanswered: int) -> float:
        nonlocal second
        for _ in range(seconds):
            second += 1
            counters["requests"] += requests
            counters["inferences"] += requests
            counters["unanswered"] += unanswered
            spent = {
                "busy_s": float(second),
                "in_flight_request_s": 8.0 * second,
                "in_flight_inference_s": 8.0 * second,
            }
            spent["execution_s"] = 1.6 * counters["requests"]
            c.replica(replica_sample(A, sequence=second, uptime_s=float(second), **counters, **spent), T0 + second)
        known = c.mu_ips(REVISION.id, "cpu")
        assert known is not None
        return known

    assert run(60, 5, 0) == pytest.approx(5.0)
    assert run(60, 1, 19) == pytest.approx(5.0), "neither what was answered nor what arrived"
    assert run(60, 0, 20) == pytest.approx(5.0)
    assert run(300, 1, 2) == pytest.approx(3.0, rel=0.05), "with all of them it would not be 5: the model is slower"
    assert run(60, 5, 0) == pytest.approx(5.0, rel=0.02)
    assert run(300, 50, 6) == pytest.approx(50.0, rel=0.15), "what was answered alone is more: the model is quicker"


def test_no_rate_is_learnt_while_a_replica_works_with_borrowed_cores_and_its_limit_stays_its_own() -> None:
    c = collector(A)
    second = requests = 0

    def run(seconds: int, each_s: int, boost: int) -> float | None:
        nonlocal second, requests
        for _ in range(seconds):
            second += 1
            requests += each_s
            spent = {"busy_s": float(second), "in_flight_request_s": float(second * boost)}
            sample = replica_sample(
                A,
                sequence=second,
                uptime_s=float(second),
                requests=requests,
                inferences=requests,
                execution_s=float(requests) / 10,
                in_flight_inference_s=spent["in_flight_request_s"],
                boost=boost,
                **spent,
            )
            c.replica(sample, T0 + second)
        return c.mu_ips(REVISION.id, "cpu")

    assert run(60, 10, 1) == pytest.approx(10.0)
    assert run(60, 20, 2) == pytest.approx(10.0), "that is twice a replica"
    assert look(c, T0 + second, A).limit == 1


def test_an_interval_is_what_the_sender_says_not_when_the_sample_arrived() -> None:
    c = collector()
    pull(c, 1)
    c.gateway(gateway_sample(demand(arrivals=30), sequence=2, uptime_s=3.0), T0 + 9.9)
    assert look(c, T0 + 9.9).rps == 15.0


def test_two_workers_add_up() -> None:
    c = Collector()
    c.expect(["g0", "g1"], [])
    c.apply(REVISION.id, T0)
    for worker in ("g0", "g1"):
        c.gateway(gateway_sample(worker=worker), T0)
        c.gateway(gateway_sample(demand(arrivals=5, waiting=2), worker=worker, sequence=2, uptime_s=2.0), T0 + 1)
    seen = look(c, T0 + 1)
    assert (seen.rps, seen.waiting) == (10.0, 4)


def test_a_repeated_sequence_is_dropped() -> None:
    c = collector()
    pull(c, 1)
    assert pull(c, 2, arrivals=10)
    assert not pull(c, 2, arrivals=10)
    assert not c.gateway(gateway_sample(demand(arrivals=99), sequence=1, uptime_s=9.0), T0 + 3)
    assert look(c, T0 + 2).rps == 10.0
    assert c.faults == {"repeated": 2}


def test_a_new_incarnation_counts_from_zero() -> None:
    c = collector()
    pull(c, 1, arrivals=1000)
    c.gateway(gateway_sample(demand(arrivals=8), incarnation="i2", sequence=1, uptime_s=2.0), T0 + 4)
    seen = look(c, T0 + 4)
    assert seen.rps == 4.0, "eight arrivals in the two seconds since it started"
    assert not c.faults


def test_a_process_that_ran_before_us_is_measured_from_its_first_sample_on() -> None:
    c = collector(A)
    c.gateway(gateway_sample(demand(arrivals=10**6, waiting=4, waiting_request_s=5e4), uptime_s=9e4), T0)
    c.replica(replica_sample(A, uptime_s=9e4, requests=10**6, in_flight=1, in_flight_request_s=8e4), T0)
    seen = look(c, T0, A)
    assert (seen.rps, seen.lambda_ips) == (0.0, 0.0)
    assert seen.concurrency == 5.0, "what is present now stands for the mean that was not measured"


def test_what_arrives_now_is_not_known_before_a_second_sample_of_a_process_that_ran_before_us() -> None:
    """An autoscaler that has just started must not take the load that it cannot know for none."""
    c = collector(A)
    c.replica(replica_sample(A, uptime_s=900.0, sequence=900, requests=9_000), T0 + 1)
    for second, is_known in ((1, False), (2, True), (3, True)):
        report = demand(arrivals=9_000 + 10 * second, answered=9_000 + 10 * second)
        c.gateway(gateway_sample(report, sequence=900 + second, uptime_s=900.0 + second), T0 + second)
        seen = look(c, T0 + second, A)
        assert (seen.complete, seen.rps) == (is_known, 10.0 if is_known else 0.0)


def test_a_worker_that_has_counted_nothing_yet_tells_that_nothing_comes() -> None:
    c = collector(A)
    c.replica(replica_sample(A, uptime_s=900.0, sequence=900), T0 + 1)
    c.gateway(gateway_sample(demand(arrivals=0), sequence=900, uptime_s=900.0), T0 + 1)
    assert look(c, T0 + 1, A).complete


def test_a_revision_made_known_late_does_not_inherit_old_counters() -> None:
    c = Collector()
    c.expect(["g0"], [])
    pull(c, 1, arrivals=500)
    c.apply(REVISION.id, T0 + 1.5)
    pull(c, 2, arrivals=501)
    assert look(c, T0 + 2).rps == 0.0
    pull(c, 3, arrivals=503)
    assert look(c, T0 + 3).rps == 2.0


def test_the_first_request_of_a_known_revision_counts() -> None:
    c = collector()
    c.gateway(gateway_sample(), T0 + 1)
    c.gateway(gateway_sample(demand(arrivals=1, waiting=1), sequence=2, uptime_s=2.0), T0 + 2)
    seen = look(c, T0 + 2)
    assert (seen.rps, seen.waiting, seen.idle_s) == (1.0, 1, 0.0)


@pytest.mark.parametrize(
    "values",
    [
        {"waiting_request_s": math.nan},
        {"waiting_request_s": math.inf},
        {"arrivals": -1},
        {"waiting": -3},
        {"oldest_waiting_s": -0.1},
        {"arrivals_inferences": 10**30},
        {"latency": ((99999, 1),)},
        {"latency": ((3, -1),)},
        {"groups": (GroupTraffic(group="cpu", requests=-1, inferences=0, failures=0),)},
    ],
    ids=str,
)
def test_figures_that_cannot_be_true_are_ignored_and_counted(values: dict[str, Any]) -> None:
    c = collector()
    pull(c, 1)
    pull(c, 2, arrivals=10)
    pull(c, 3, **({"arrivals": 20} | values))
    assert c.faults == {"garbage": 1}
    seen = look(c, T0 + 3)
    assert (seen.rps, seen.complete) == (10.0, True), "the last good second stands"
    pull(c, 4, arrivals=30)
    assert look(c, T0 + 4).rps == 20.0, "the difference to the last good sample, in the sender's last second"


def test_garbage_of_one_revision_leaves_the_others_alone() -> None:
    c = collector()
    other = revision(name="bert")
    c.apply(other.id, T0)
    bad: RevisionDemand = demand(arrivals=-1)
    c.gateway(gateway_sample(), T0)
    c.gateway(gateway_sample(bad, demand(other.id, arrivals=7), sequence=2, uptime_s=2.0), T0 + 1)
    assert c.observe(other, (), T0 + 1).rps == 7.0


def test_garbage_that_goes_on_becomes_missing_data() -> None:
    c = collector()
    pull(c, 1)
    pull(c, 2, arrivals=10)
    for second in range(3, 8):
        pull(c, second, arrivals=-1)
    assert look(c, T0 + 4).complete
    assert not look(c, T0 + 7).complete


def test_a_counter_that_runs_backwards_is_a_fault_and_for_long_a_new_start() -> None:
    c = collector()
    pull(c, 1)
    pull(c, 2, arrivals=100)
    for second in range(3, 3 + RESET_AFTER):
        pull(c, second, arrivals=5)
    assert c.faults == {"backwards": RESET_AFTER}
    pull(c, 3 + RESET_AFTER, arrivals=9)
    assert look(c, T0 + 3 + RESET_AFTER).rps == 4.0


def test_a_source_that_stopped_counting_is_heard_again() -> None:
    c = collector(A)
    pull(c, 50)
    c.replica(replica_sample(A, sequence=50, uptime_s=50.0), T0 + 50)
    for second in range(51, 51 + RESET_AFTER):
        c.gateway(gateway_sample(demand(waiting=2), sequence=second - 50, uptime_s=60.0), T0 + second)
        c.replica(replica_sample(A, sequence=second - 50, uptime_s=60.0), T0 + second)
    last = 51 + RESET_AFTER
    c.gateway(gateway_sample(demand(waiting=3), sequence=9, uptime_s=61.0), T0 + last)
    c.replica(replica_sample(A, sequence=9, uptime_s=61.0, limit=5), T0 + last)
    seen = look(c, T0 + last, A)
    assert (seen.complete, seen.age_s, seen.waiting, seen.limit) == (True, 0.0, 3, 5)


@pytest.mark.parametrize(
    "values",
    [
        {"busy_s": math.nan},
        {"in_flight": -1},
        {"requests": -5},
        {"execution_s": math.inf},
        {"uptime_s": -1.0},
        {"unanswered": 10**415},
    ],
    ids=str,
)
def test_a_replicas_garbage_is_ignored(values: dict[str, Any]) -> None:
    c = collector(A)
    pull(c, 1)
    c.replica(replica_sample(A, in_flight=1), T0 + 1)
    assert not c.replica(replica_sample(A, **({"sequence": 2, "uptime_s": 2.0} | values)), T0 + 2)
    assert c.faults == {"garbage": 1}
    assert look(c, T0 + 2, A).groups[0].sampled == 1


def test_a_rounding_error_is_not_a_step_back() -> None:
    """Integrals are sums of floats: the same time added in another order may come out a hair smaller."""
    c = collector(A)
    pull(c, 1, waiting_request_s=0.3)
    pull(c, 2, waiting_request_s=0.3 - 1e-12)
    c.replica(replica_sample(A, in_flight_request_s=1e5), T0 + 1)
    assert c.replica(replica_sample(A, sequence=2, uptime_s=2.0, in_flight_request_s=1e5 - 1e-10), T0 + 2)
    assert (look(c, T0 + 2, A).concurrency, c.faults) == (0.0, {})


def test_a_replica_that_runs_backwards_for_long_starts_anew() -> None:
    c = collector(A)
    c.replica(replica_sample(A, requests=100, uptime_s=51.0), T0 + 1)
    for second in range(2, 2 + RESET_AFTER):
        report = replica_sample(A, sequence=second, uptime_s=50.0 + second, requests=3, in_flight=2)
        assert not c.replica(report, T0 + second)
    last = 2 + RESET_AFTER
    assert look(c, T0 + last, A).concurrency == 2.0, "what is in flight now, since nothing else is known"
    assert c.replica(replica_sample(A, sequence=last, uptime_s=50.0 + last, requests=5), T0 + last)
    assert look(c, T0 + last, A).groups[0].rps == 2.0


def test_missing_is_not_zero() -> None:
    c = collector(A)
    assert not look(c, T0, A).complete, "no process has reported yet"
    pull(c, 1, waiting=2)
    assert not look(c, T0 + 1, A).complete, "the only replica was not heard of"
    c.replica(replica_sample(A), T0 + 1)
    assert look(c, T0 + 1, A).complete
    assert look(c, T0 + 4, A).complete, "three seconds are forgiven"
    late = look(c, T0 + 4.1, A)
    assert (late.complete, late.age_s) == (False, None)


def test_a_starting_replica_need_not_answer() -> None:
    c = collector(A)
    pull(c, 1)
    assert c.observe(REVISION, (FleetGroup(accelerator="cpu", starting=1),), T0 + 1).complete


def test_replicas_that_were_heard_of_speak_for_the_group() -> None:
    c = collector(A, B)
    pull(c, 1)
    c.replica(replica_sample(A, in_flight_request_s=3.0), T0 + 1)
    seen = look(c, T0 + 1, A, B)
    assert (seen.complete, seen.groups[0].sampled, seen.concurrency) == (True, 1, 6.0)


def test_sources_that_are_gone_are_forgotten() -> None:
    c = collector(A)
    pull(c, 1, waiting=5)
    c.replica(replica_sample(A), T0 + 1)
    c.expect(["g1"], [])
    seen = look(c, T0 + 1)
    assert (seen.waiting, seen.complete) == (0, False)
    assert "0/1 gateways, 0 replicas, 1 revisions" in repr(c)


def test_a_draining_replicas_work_does_not_ask_for_more_replicas() -> None:
    c = collector(A, B)
    pull(c, 1)
    c.replica(replica_sample(A, in_flight_request_s=1.0), T0 + 1)
    c.replica(replica_sample(B, in_flight_request_s=9.0), T0 + 1)
    drained = c.observe(REVISION, (FleetGroup(accelerator="cpu", ready=(A,), draining=1),), T0 + 1)
    assert drained.concurrency == 1.0


def test_latencies_are_those_of_the_last_half_minute() -> None:
    c = collector()
    slow, fast = bucket_index(900_000), bucket_index(20_000)
    pull(c, 1)
    pull(c, 2, answered=10, within_sla=0, latency=((slow, 10),), groups=(_traffic((slow, 10)),))
    seen = look(c, T0 + 2)
    assert seen.latency_s == pytest.approx(0.9, rel=0.13)
    assert seen.within_sla == 0.0
    assert seen.groups[0].latency_s == seen.latency_s
    values: dict[str, Any] = {"answered": 90, "within_sla": 80, "latency": ((fast, 80), (slow, 10))}
    c.gateway(gateway_sample(demand(**values), sequence=3, uptime_s=50.0), T0 + 50)
    later = look(c, T0 + 50)
    assert later.latency_s == pytest.approx(0.02, rel=0.13)
    assert later.within_sla == 1.0


def test_of_requests_without_an_answer_those_that_missed_the_sla_count_like_a_late_answer() -> None:
    c = Collector(by_size=[REVISION.function.scaling.policy])
    c.expect(["g0"], ())
    c.apply(REVISION.id, T0)
    look(c, T0)
    pull(c, 1)
    pull(c, 2, arrivals=30, answered=10, within_sla=8, refused=15, expired=4, missed=17)
    counts = look(c, T0 + 2).counts
    assert isinstance(counts, ArrivalCounts)
    assert counts.late == 2 + 17


def test_the_first_arrivals_of_a_revision_are_counted_by_size_too() -> None:
    c = Collector(by_size=[REVISION.function.scaling.policy])
    c.expect(["g0"], ())
    c.apply(REVISION.id, T0)
    look(c, T0)
    c.gateway(replace(gateway_sample(demand(), sequence=1, uptime_s=1.0), demands=()), T0 + 1)
    pull(c, 2, arrivals=40, arrivals_inferences=40, sizes=((bucket_index(1), 40),))
    assert look(c, T0 + 2).counts == ArrivalCounts(((1.0, 40.0),), 0.0)


def _traffic(*latency: tuple[int, int]) -> GroupTraffic:
    return GroupTraffic(group="cpu", requests=10, inferences=10, failures=0, latency=latency)


def test_execution_figures_of_a_group_are_means_over_its_requests() -> None:
    c = collector(A)
    pull(c, 1)
    c.replica(replica_sample(A), T0 + 1)
    work = {"requests": 4, "inferences": 32, "execution_s": 0.8, "queue_s": 0.04, "busy_s": 0.5}
    c.replica(replica_sample(A, sequence=2, uptime_s=2.0, limit=3, **work), T0 + 2)
    seen = look(c, T0 + 2, A).groups[0]
    assert (seen.rps, seen.ips, seen.busy, seen.limit) == (4.0, 32.0, 0.5, 3)
    assert (seen.mean_batch, seen.execution_s, seen.queue_s) == (8.0, 0.2, 0.01)


def test_lambda_is_a_mean_of_ten_seconds_and_silence_is_silence() -> None:
    c = collector()
    for second in range(1, 21):
        pull(c, second, arrivals=second, arrivals_inferences=8 * second)
    assert look(c, T0 + 20).lambda_ips == 8.0
    for second in range(21, 26):
        pull(c, second, arrivals=20, arrivals_inferences=160)
    assert look(c, T0 + 25).lambda_ips == 4.0
    assert look(c, T0 + 40).lambda_ips == 0.0


def test_idle_time_counts_from_the_last_sign_of_work() -> None:
    c = collector(A)
    pull(c, 1)
    assert look(c, T0 + 5).idle_s == 5.0
    pull(c, 6, arrivals=1, answered=1)
    pull(c, 9, arrivals=1, answered=1)
    assert look(c, T0 + 10).idle_s == 4.0
    c.replica(replica_sample(A, in_flight=1), T0 + 12)
    assert look(c, T0 + 12, A).idle_s == 0.0
    c.touch(REVISION.id, T0 + 20)
    assert look(c, T0 + 21).idle_s == 1.0


def test_memory_is_bounded_by_what_exists() -> None:
    c = collector()
    for number in range(200):
        groups = (GroupTraffic(group=f"x{number}", requests=1, inferences=1, failures=0, latency=((5, number + 1),)),)
        pull(c, number + 1, arrivals=number, groups=groups)
    assert len(c._revisions[REVISION.id].groups) <= 64
    c.gateway(replace(gateway_sample(demand("ghost-00001", arrivals=1)), sequence=900, uptime_s=900.0), T0 + 900)
    assert not c.replica(replica_sample("ghost-00001-aaaaa"), T0 + 900)
    c.forget(REVISION.id)
    assert "0 revisions" in repr(c)


def test_after_an_outage_the_first_sample_is_no_burst() -> None:
    """Five a second all the time; nothing is heard for a minute. Counted into one second it would look like thirty."""
    c = collector()
    for second in range(1, 21):
        pull(c, second, arrivals=5 * second, arrivals_inferences=5 * second)
    pull(c, 80, arrivals=400, arrivals_inferences=400)
    assert look(c, T0 + 80).lambda_ips == pytest.approx(5.0)
    for second in range(81, 95):
        pull(c, second, arrivals=5 * second, arrivals_inferences=5 * second)
        assert look(c, T0 + second).lambda_ips == pytest.approx(5.0)


def test_a_large_sample_is_taken_in_parts() -> None:
    c = Collector()
    c.expect(["g0"], [])
    names = [f"f{number}-00001" for number in range(450)]
    for name in names:
        c.apply(name, T0)
    c.gateway(gateway_sample(*(demand(name) for name in names)), T0)
    sample = gateway_sample(*(demand(name, arrivals=1) for name in names), sequence=2, uptime_s=2.0)
    parts = c.gateway_parts(sample, T0 + 1)
    assert sum(1 for _ in parts) == 450 // PART
    assert c.observe(Revision(function("f449"), 1), (), T0 + 1).rps == 1.0


def test_a_group_tells_what_it_learnt_and_how_late_it_answers() -> None:
    """Ten requests of 0.1 s a second on one slot; a fifth of the answers took a second."""
    c = collector(A)
    slow, fast = bucket_index(1_000_000), bucket_index(120_000)
    for second in range(1, 31):
        done = 10 * second
        heard = GroupTraffic(
            group="cpu", requests=done, inferences=done, failures=0, latency=((fast, 8 * second), (slow, 2 * second))
        )
        pull(c, second, arrivals=done, arrivals_inferences=done, answered=done, groups=(heard,))
        c.replica(
            replica_sample(
                A,
                sequence=second,
                uptime_s=float(second),
                requests=done,
                inferences=done,
                busy_s=float(second),
                in_flight_request_s=float(second),
                in_flight_inference_s=float(second),
                execution_s=float(second),
                execution=((bucket_index(100_000), done),),
            ),
            T0 + second,
        )
    (seen,) = look(c, T0 + 30, A).groups
    assert seen.is_mu_learnt
    assert seen.mu_ips == pytest.approx(10.0)
    assert seen.tail_s == pytest.approx(0.1, rel=0.13)
    assert seen.min_execution_s == pytest.approx(0.1)
    assert seen.answers == pytest.approx(5 * seen.late)
    assert seen.latency_s == pytest.approx(1.0, rel=0.13)
    assert c.mu_ips("resnet-00001", "cpu") == pytest.approx(10.0)
    assert c.mu_ips("resnet-00001", "gpu") is None


@pytest.mark.parametrize("full_from", range(15, 15 + PHASES))
def test_a_limit_that_is_reached_is_reported_in_that_second(full_from: int) -> None:
    """One of two slots is busy for a while, which is a bound of the rate; then both are."""
    c = collector(A)
    done, held_s, is_known = 0, 0.0, False
    for second in range(1, full_from + 3):
        slots = 2 if second >= full_from else 1
        done, held_s = done + 10 * slots, held_s + slots
        pull(c, second, arrivals=done, answered=done)
        work = {"requests": done, "inferences": done, "execution_s": held_s, "busy_s": float(second)}
        in_flight = {"in_flight_request_s": held_s, "in_flight_inference_s": held_s}
        c.replica(replica_sample(A, sequence=second, uptime_s=float(second), limit=2, **work, **in_flight), T0 + second)
        is_known = c.mu_ips(REVISION.id, "cpu") is not None
        (seen,) = look(c, T0 + second, A).groups
        assert seen.is_mu_learnt is is_known
        assert seen.mu_bound_ips is not None or second < 3
    assert is_known


@pytest.mark.parametrize("serves", [True, False])
def test_the_groups_of_a_fifth_of_the_revisions_are_looked_at_in_each_second(serves: bool) -> None:
    """Ten answers a second of each of ten revisions: what is reported of their groups moves every fifth second, of two
    of them in each, and is never older than that; what is reported of the revisions themselves is of now. ``serves``:
    replicas report their work too, so that the groups have a service rate."""
    revisions = [Revision(function(f"f{number}"), 1) for number in range(2 * PHASES)]
    names = {each.id: f"{each.id}-aaaaa" for each in revisions}
    c = Collector()
    c.expect(["g0"], names.values())
    for each in revisions:
        c.apply(each.id, T0)
    moved = []
    before = dict.fromkeys(names, 0)
    for second in range(1, 25):
        done, now = 10 * second, T0 + second
        heard = ((bucket_index(100_000), done),)
        traffic = (GroupTraffic(group="cpu", requests=done, inferences=done, failures=0, latency=heard),)
        demands = [
            demand(each.id, arrivals=done, answered=done, within_sla=done, latency=heard, groups=traffic)
            for each in revisions
        ]
        c.gateway(gateway_sample(*demands, sequence=second, uptime_s=float(second)), now)
        for each in revisions if serves else ():
            work = {"requests": done, "inferences": done, "execution_s": float(second), "busy_s": float(second)}
            in_flight = {"in_flight_request_s": float(second), "in_flight_inference_s": float(second)}
            report = replica_sample(names[each.id], sequence=second, uptime_s=float(second), **work, **in_flight)
            c.replica(replace(report, revision=each.id), now)
        seen = {
            each.id: c.observe(each, (FleetGroup(accelerator="cpu", ready=(names[each.id],)),), now)
            for each in revisions
        }
        assert all((each.groups[0].mu_bound_ips is not None) is serves for each in seen.values() if second > 3)
        answers = {name: observation.groups[0].answers for name, observation in seen.items()}
        moved.append(sum(answers[name] != before[name] for name in before))
        before = answers
        assert all(done - 10 * (PHASES - 1) <= count <= done for count in answers.values())
        assert all(observation.within_sla == 1.0 for observation in seen.values())
    assert moved[PHASES:] == [2] * (24 - PHASES)


def test_the_rate_reported_is_that_of_the_present_mix_not_of_the_last_batch() -> None:
    """Batches of 1 and 16 take turns, on one slot: 10 ms and 100 ms. A mix of 8.5 yields 8.5 / 0.055 s."""
    c = collector(A)
    requests = inferences = 0
    busy_s = inference_s = 0.0
    for second in range(1, 41):
        batch, took = ((1, 0.01), (16, 0.1))[second % 2]
        requests, inferences = requests + 5, inferences + 5 * batch
        busy_s, inference_s = busy_s + 5 * took, inference_s + 5 * took * batch
        pull(c, second, arrivals=requests, arrivals_inferences=inferences)
        c.replica(
            replica_sample(
                A,
                sequence=second,
                uptime_s=float(second),
                requests=requests,
                inferences=inferences,
                busy_s=busy_s,
                in_flight_request_s=busy_s,
                in_flight_inference_s=inference_s,
                execution_s=busy_s,
            ),
            T0 + second,
        )
        look(c, T0 + second, A)
    assert c.mu_ips("resnet-00001", "cpu") == pytest.approx(8.5 / 0.055, rel=0.02)


def test_a_sum_that_grows_by_next_to_nothing_stops_none() -> None:
    c = collector(A)
    warm = replica_sample(A, requests=50, inferences=50, busy_s=50.0)
    c.replica(warm, T0)
    tiny = replace(warm, sequence=2, uptime_s=2.0, requests=60, busy_s=51.0, in_flight_request_s=1e-300)
    assert c.replica(replace(tiny, in_flight_inference_s=1e14), T0 + 1)
    assert look(c, T0 + 1, A).groups[0].busy == 1.0


def test_a_replica_that_is_not_expected_any_more_tells_nothing_though_the_fleet_is_the_very_same() -> None:
    c, fleet = collector(A), (FleetGroup(accelerator="cpu", ready=(A,)),)
    sampled = []
    for second, expected in enumerate(((A,), (A,), (), (A,)), start=1):
        c.expect(["g0"], expected)
        if expected:
            c.replica(replica_sample(A, sequence=second, uptime_s=float(second)), T0 + second)
        sampled.append(c.observe(REVISION, fleet, T0 + second).groups[0].sampled)
    assert sampled == [1, 1, 0, 1], "gone, it is forgotten; back again, it is found"


def test_a_revision_that_was_forgotten_begins_anew_with_the_replicas_that_it_had() -> None:
    c = collector(A)
    for second in range(1, 31):
        if second == 15:
            c.forget(REVISION.id)
            c.apply(REVISION.id, T0 + second)
        done, busy_s = 20 * second, 0.5 * second
        sample = replica_sample(A, sequence=second, uptime_s=float(second), requests=done, inferences=done)
        c.replica(replace(sample, busy_s=busy_s, in_flight_request_s=busy_s, in_flight_inference_s=busy_s), T0 + second)
    cells, _ = c.learnt(REVISION.id)["cpu"]
    assert [round(cell.batch / cell.seconds_per_request) for cell in cells] == [40]


def test_metadata_requests_are_no_use_of_a_function() -> None:
    at = Collector()
    at.apply(revision().id, T0)
    at.gateway(gateway_sample(demand(), sequence=1), T0 + 1.0)
    at.gateway(gateway_sample(demand(arrivals=1), sequence=2, uptime_s=2.0), T0 + 2.0)
    assert not at.is_used("resnet-00001"), "it has not ended"
    at.gateway(gateway_sample(demand(arrivals=1, answered=1, metadata=1), sequence=3, uptime_s=3.0), T0 + 3.0)
    assert not at.is_used("resnet-00001")
    at.gateway(gateway_sample(demand(arrivals=2, answered=2, metadata=1), sequence=4, uptime_s=4.0), T0 + 4.0)
    assert at.is_used("resnet-00001")


def test_a_first_sample_with_a_metadata_request_alone_is_no_use() -> None:
    at = Collector()
    at.apply(revision().id, T0)
    at.gateway(gateway_sample(), T0 + 1.0)
    at.gateway(gateway_sample(demand(arrivals=1, answered=1, metadata=1), sequence=2, uptime_s=2.0), T0 + 2.0)
    assert not at.is_used("resnet-00001")
