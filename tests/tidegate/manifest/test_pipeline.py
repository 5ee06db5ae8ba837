"""Pipelines: what their policy may be, and where a stage's inputs come from."""

from dataclasses import replace

import pytest

from tidegate.errors import InvalidInputError
from tidegate.function import Function
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.manifest.writer import write
from tidegate.records.pipeline import CHAIN, Comparison, Condition, Stage

HEAD = """\
apiVersion: tidegate.dev/v1alpha1
kind: Pipeline
metadata:
  name: video
  annotations:
    tidegate.dev/latency: 780ms
    tidegate.dev/policy: {policy}
spec:
  stages:
"""


def parsed(stages: str, context: ParseContext, policy: str = "tide") -> Function:
    known = replace(context, policies=(*context.policies, "themis"))
    (found,) = read(HEAD.format(policy=policy) + stages, source="manifest.yaml", context=known).functions
    return found


def faults(stages: str, context: ParseContext, policy: str = "tide") -> list[str]:
    with pytest.raises(InvalidInputError) as raised:
        parsed(stages, context, policy)
    return [str(each) for each in raised.value.faults]


GRAPH = """\
    - function: page
      after: [latin, kanji]
      inputs: {a: latin.text, b: kanji.text, size: request.size}
    - function: detect
      after: []
    - function: latin
      after: detect
      when: {field: script, is: [latin, both]}
    - function: kanji
      after: detect
      when: {field: boxes, above: 2.5}
"""


def test_stages_are_put_behind_those_whose_answers_they_get(context: ParseContext) -> None:
    found = parsed(GRAPH, context)
    assert [each.function for each in found.server.stages] == ["detect", "latin", "kanji", "page"]
    detect, latin, kanji, page = found.server.stages
    assert (detect.after, latin.after, page.after) == ((), ("detect",), ("latin", "kanji"))
    assert latin.when == Condition(field="script", test=Comparison.IS, values=("latin", "both"))
    assert kanji.when == Condition(field="boxes", test=Comparison.ABOVE, values=("2.5",))
    assert page.inputs == (("a", "latin.text"), ("b", "kanji.text"), ("size", "request.size"))


def test_what_is_written_is_read_as_the_same_pipeline(context: ParseContext) -> None:
    found = parsed(GRAPH, context, "smif")
    (again,) = read(write(found), source="written", context=context).functions
    assert again == found


def test_a_chain_names_no_predecessors_and_may_have_profiles(context: ParseContext) -> None:
    found = parsed("    - {function: yolo, profile: '1,2,3,4'}\n    - {function: net}\n", context, "themis")
    assert found.server.stages == (
        Stage(function="yolo", profile="1,2,3,4", after=CHAIN),
        Stage(function="net", after=CHAIN),
    )
    assert found.scaling.policy == "themis"


def test_the_default_policy_is_that_of_a_function_with_a_latency(context: ParseContext) -> None:
    text = HEAD.replace("    tidegate.dev/policy: {policy}\n", "") + "    - {function: net}\n"
    (found,) = read(text, source="manifest.yaml", context=context).functions
    assert found.scaling.policy == "tide"


def test_policies_over_all_stages_take_chains_only(context: ParseContext) -> None:
    (found,) = faults(GRAPH, context, "themis")
    assert "tide or smif: the stages branch" in found


def test_a_profile_is_for_policies_over_all_stages_alone(context: ParseContext) -> None:
    (found,) = faults("    - {function: yolo, profile: '1,2,3,4'}\n", context)
    assert "no such key unless policy is themis, horizontal-only or vertical-only" in found


def test_inputs_come_from_stages_before_or_the_request(context: ParseContext) -> None:
    stages = """\
    - {function: detect, after: [], inputs: {x: y}, when: {field: a, is: b}}
    - {function: latin, after: detect, inputs: {x: kanji.text}}
    - {function: kanji, after: detect}
"""
    first, condition, source = faults(stages, context)
    assert "spec.stages[0].inputs.x: got 'y'; allowed: request.INPUT: no stage comes before this one" in first
    assert "spec.stages[0].when" in condition
    assert "spec.stages[1].inputs.x: got 'kanji.text'; allowed: an output of detect, or request.INPUT" in source
