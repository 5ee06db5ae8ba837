"""The simulation of conversations: what affinity by prefix finds, against the others in the same run."""

from dataclasses import replace

from benchmarks.micro.affinity_sim import AGENTS, RULES, Load, Simulation
from tidegate.activator.prefixes import REPLICA_BLOCKS


def test_more_is_found_by_prefix_than_by_hashing_what_is_equal() -> None:
    load = Load(users_per_s=2.0, cache_blocks=1000, seconds=240.0)
    found = {rule: Simulation(load, rule).run() for rule in RULES}
    prefix, prompt, session, none = (found[rule] for rule in RULES)
    assert prefix.hit_rate >= session.hit_rate > prompt.hit_rate > none.hit_rate
    assert prefix.first_token_p95_s <= session.first_token_p95_s
    assert 0 < prefix.remembered_blocks <= 11 * REPLICA_BLOCKS
    assert abs(prefix.requests - none.requests) < 0.02 * none.requests, "the same traffic"


def test_conversations_keep_to_one_of_two_accelerators() -> None:
    load = Load(users_per_s=2.0, cache_blocks=4000, seconds=240.0)
    one, two = (Simulation(replace(load, groups=groups), "prefix").run() for groups in (1, 2))
    assert two.hit_rate > one.hit_rate - 0.02
    assert two.hit_rate > Simulation(replace(load, groups=2), "session").run().hit_rate


def test_what_agents_share_does_not_hide_what_tells_their_conversations_apart() -> None:
    load = Load(users_per_s=2.0, cache_blocks=4000, seconds=240.0, systems=AGENTS)
    prefix, prompt, session = (Simulation(load, rule).run() for rule in RULES[:3])
    assert prefix.hit_rate >= session.hit_rate > prompt.hit_rate
    assert prefix.first_token_p95_s < session.first_token_p95_s
