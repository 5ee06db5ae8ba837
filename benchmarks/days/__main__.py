"""Policies over days of a trace of the championship, in a world of one queue: in minutes.

Policies, decisions and their limits, the weights of groups, the traces, service times and start-up times are those of
the championship. What is left out is the request path: requests wait in one line and take the replica that is free
first, among groups the one furthest below its weight; counts are exact, service times by size are known of a group once
it has served, and a decision is carried out at once. The figures that count are the simulator's (``tidegate experiment
championship``).

``--set level.LONGEST_S=128`` gives a constant of one of the modules of policy ``tide`` another value.

Prints one JSON line for each row: late share in percent, cost in dollars, mean replicas and starts a day of the judged
part, the share of its seconds in which the price of a late request was at its limit (``tide``); with ``--bound`` the
cost over the clairvoyant bound without a late request. ``--static`` adds the constant fleet of one group that keeps the
SLA for the least money, chosen with all requests known. A policy that cannot run has ``error`` and the reason.

    python -m benchmarks.days --trace spike --policy tide,kpa --static [--groups 1,3] [--start-up 5,30,120] [--bound]
    python -m benchmarks.days --trace twitter --data DIR --judged-day 9
"""

import argparse
import importlib
import json
from dataclasses import replace
from pathlib import Path
from time import process_time

from benchmarks.days.play import Figures, Row, least_cost, play, static
from benchmarks.days.rare import RARE
from tidegate.autoscaler.policies import registry
from tidegate.errors import TidegateError
from tidegate.loadgen.experiments.championship.fleets import FLEETS
from tidegate.loadgen.experiments.championship.row import STATIC, Entrant
from tidegate.loadgen.experiments.championship.traces import DAY_S, HOUR_S, LEAGUES, Lengths, constant

PLAYED = {name: league for name, league in (*LEAGUES.items(), *RARE.items()) if league.service.slots == 1}
TRACES = tuple(PLAYED)


def set_constant(setting: str) -> None:
    """Gives a constant another value. Raises ImportError, AttributeError or ValueError if there is no such number."""
    place, _, value = setting.partition("=")
    name, _, constant = place.partition(".")
    module = importlib.import_module(f"tidegate.autoscaler.policies.tide.{name}")
    setattr(module, constant, type(getattr(module, constant))(value))


def parsed() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="twitter", help=f"separated by commas: {', '.join(TRACES)}")
    parser.add_argument("--policy", default="tide", help="separated by commas; all: every registered one; none")
    parser.add_argument("--static", action="store_true", help="the constant fleet that keeps the SLA as well")
    parser.add_argument("--groups", default="1", help=f"numbers of groups, separated by commas: {sorted(FLEETS)}")
    parser.add_argument("--start-up", default="30", help="seconds, separated by commas")
    parser.add_argument("--seeds", default="1", help="1-5, or separated by commas")
    parser.add_argument("--data", type=Path, help="folder with the public traces")
    parser.add_argument("--judged-day", type=int, help="day of a trace from a file that the judged part begins with")
    parser.add_argument("--rate", type=float, help="requests per second of `constant`, in place of 60")
    parser.add_argument("--learn", type=float, help="hours before anything is judged")
    parser.add_argument("--for", dest="judged", type=float, help="hours that are judged")
    parser.add_argument("--set", action="append", default=[], metavar="MODULE.NAME=VALUE", help="repeatable")
    parser.add_argument("--bound", action="store_true", help="the cost over the clairvoyant bound as well")
    return parser


def numbers(text: str) -> list[int]:
    """Returns 1-5 or 1,3 as numbers. Raises ValueError."""
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(each) for each in text.split(",")]


def main() -> None:
    parser = parsed()
    given = parser.parse_args()
    for each in given.set:
        try:
            set_constant(each)
        except (ImportError, AttributeError, ValueError) as error:
            parser.error(f"--set {each}: {error}; MODULE.NAME=NUMBER with a constant of autoscaler/policies/tide")
    names = {"all": registry.names(), "none": ()}.get(given.policy, given.policy.split(","))
    if unknown := sorted(set(names) - set(registry.names())):
        parser.error(f"--policy {', '.join(unknown)}: unknown; all, none, or of {', '.join(registry.names())}")
    try:
        seeds, groups = numbers(given.seeds), numbers(given.groups)
        starts_s = [float(each) for each in given.start_up.split(",")]
    except ValueError as error:
        parser.error(f"--seeds, --groups, --start-up: {error}")
    if unknown := sorted(set(groups) - set(FLEETS)):
        parser.error(f"--groups {unknown}: of {sorted(FLEETS)}")
    for trace in given.trace.split(","):
        for row in rows(parser, given, trace, groups, starts_s, seeds):
            tell(trace, row, names, given)


def rows(
    parser: argparse.ArgumentParser,
    given: argparse.Namespace,
    trace: str,
    groups: list[int],
    starts_s: list[float],
    seeds: list[int],
) -> list[Row]:
    if trace not in TRACES:
        parser.error(f"--trace {trace}: unknown, or with several slots a replica; of {', '.join(TRACES)}")
    league = PLAYED[trace]
    usual = league.lengths
    lengths = Lengths(
        learn_s=usual.learn_s if given.learn is None else given.learn * HOUR_S,
        judged_s=usual.judged_s if given.judged is None else given.judged * HOUR_S,
    )
    if given.rate is not None:
        if trace != "constant" or given.rate <= 0.0:
            parser.error(f"--rate {given.rate:g}: above 0, with --trace constant")
        league = replace(league, made=constant(given.rate))
    if given.judged_day is not None:
        league = replace(league, begins_s=(given.judged_day - 1) * DAY_S)
    file = league.find(given.data)
    if league.made is None and file is None:
        parser.error(f"--trace {trace} needs --data FOLDER with {' or '.join(league.files)}")
    return [
        Row(league=league, lengths=lengths, file=file, groups=count, start_s=start_s, seed=seed)
        for seed in seeds
        for count in groups
        for start_s in starts_s
    ]


def tell(trace: str, row: Row, names: tuple[str, ...], given: argparse.Namespace) -> None:
    """Prints the lines of one row."""
    b0 = least_cost(row) if given.bound else None
    for name in (*names, STATIC.policy) if given.static else names:
        line: Figures = {"trace": trace, "groups": row.groups, "start_up_s": row.start_s, "seed": row.seed}
        line["policy"] = name
        if given.set:
            line["set"] = ", ".join(given.set)
        began = process_time()
        try:
            is_static = name == STATIC.policy
            line |= static(replace(row, start_s=0.0)) if is_static else play(row, Entrant(policy=name))
        except (TidegateError, LookupError) as error:
            line["error"] = str(error)
        line["cpu_s"] = round(process_time() - began, 1)
        if b0 and "cost_dollars" in line:
            line |= {"b0_dollars": round(b0, 3), "cost_over_b0": round(float(line["cost_dollars"]) / b0, 3)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
