"""Traces: equality without costs, JSON both ways, and what they name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from toys import SUM_JUDGES, ScriptedReasoner, SumReasoner, judge_sums, said, sum_question

from verdict_jax.json_records import MalformedRecord, encode, json_schema
from verdict_jax.lifting import lift
from verdict_jax.protocols import Candidate, Question, image_name
from verdict_jax.reasoning import reason
from verdict_jax.rules import RuleParameters
from verdict_jax.trace import SCHEMA, RuleSettings, Step, StepCost, Trace
from verdict_jax.tree import PanelIdentity

texts = st.text(max_size=10)
numbers = st.floats(allow_nan=False)
optional = st.none() | numbers


def several(strategy, most=3):
    return st.lists(strategy, max_size=most).map(tuple)


candidates = st.builds(
    Candidate,
    texts,
    several(st.integers(0, 2**31)),
    numbers,
    numbers,
    st.sampled_from(["step", "eos", "length"]),
)
settings_of = st.dictionaries(texts, texts | st.booleans() | st.integers() | numbers, max_size=3)
costs = st.builds(StepCost, numbers, numbers, numbers, st.booleans(), st.integers(0, 3))
steps = st.builds(
    Step,
    candidates=several(candidates),
    failures=several(st.none() | texts),
    raw=several(several(optional)),
    consensus=several(several(optional)),
    mean=several(optional),
    dispersion=several(optional),
    criterion=several(optional),
    accepted=several(st.booleans()),
    chosen=st.none() | st.integers(0, 2),
    fallback=st.booleans(),
    unjudged=st.booleans(),
    final=st.booleans(),
    cost=costs,
)
parameters = st.builds(
    RuleSettings,
    several(numbers),
    st.none() | several(several(numbers)),
    numbers, numbers, numbers, numbers, numbers,
)  # fmt: skip
traces = st.builds(
    Trace,
    schema=st.just(SCHEMA),
    item=texts,
    question=texts,
    choices=several(texts),
    gold=st.none() | texts,
    images=several(texts),
    model_id=texts,
    settings=settings_of,
    panels=several(st.builds(PanelIdentity, texts, several(texts), settings_of), 2),
    rule=texts,
    parameters=parameters,
    n=st.integers(1, 8),
    max_steps=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    steps=several(steps, 2),
    finish=st.sampled_from(["answered", "eos", "length", "cap", "empty", "error"]),
    error=st.none() | texts,
    answer=st.none() | texts,
)


# beartype picks the items it checks at random, inside strategies that build our classes.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(max_examples=25, deadline=None, derandomize=True)
@given(traces)
def test_json_both_ways(trace):
    text = trace.to_json()
    assert "\n" not in text
    read = Trace.from_json(text)
    assert read == trace
    assert [step.cost for step in read.steps] == [step.cost for step in trace.steps]
    jsonschema.validate(json.loads(text), json_schema(Trace))


def test_a_real_trace_goes_both_ways_and_says_what_was_used():
    panel = lift(judge_sums, SUM_JUDGES, name="toy/judges", settings={"readout": "exact"})
    question = sum_question(7, 5, 9)
    failing = SumReasoner(unreadable={"sum-1-2": "no such file: café.png"})
    result = reason([question, sum_question(1, 2)], failing, [panel], seed=11)
    for trace in result.traces:
        jsonschema.validate(json.loads(trace.to_json()), json_schema(Trace))
        assert Trace.from_json(trace.to_json()) == trace
    trace, broken = result.traces
    value = json.loads(trace.to_json())
    assert value["schema"] == "verdict-trace/1"
    assert value["settings"] == {"error_rate": 0.6}
    assert value["model_id"] == "toy/sum"
    assert value["panels"] == [
        {"model_id": "toy/judges", "judges": list(SUM_JUDGES), "settings": {"readout": "exact"}}
    ]
    assert (value["rule"], value["n"], value["seed"], value["max_steps"]) == ("verdict", 4, 11, 12)
    assert value["parameters"]["stubbornness"] == [1.5, 1.0, 0.8]
    assert (value["parameters"]["tau"], value["parameters"]["epsilon"]) == (0.6, 0.1)
    assert (value["question"], value["gold"]) == ("7 + 5 + 9", "21")
    assert (broken.finish, broken.error) == ("error", "no such file: café.png")
    assert "café" in broken.to_json()


def test_what_a_judge_did_not_say_is_null():
    def judge(questions, steps, candidates):
        scores, mask = judge_sums(questions, steps, candidates)
        mask[:, :, 1:] = False
        return scores, mask

    (trace,) = reason([sum_question(1, 2)], SumReasoner(), [lift(judge, SUM_JUDGES)]).traces
    step = json.loads(trace.to_json())["steps"][0]
    assert step["raw"][0][1:] == [None, None]
    assert step["consensus"] == [[None] * 3] * 4
    assert step["mean"] == step["dispersion"] == step["criterion"] == [None] * 4
    assert step["unjudged"] is True


def test_only_costs_are_left_out_of_equality():
    panel = lift(judge_sums, SUM_JUDGES)
    (trace,) = reason([sum_question(7, 5)], SumReasoner(), [panel]).traces
    other = dataclasses.replace(trace.steps[0], cost=StepCost(1.0, 2.0, 3.0, False, 7))
    assert dataclasses.replace(trace, steps=(other, *trace.steps[1:])) == trace
    for change in ({"seed": 1}, {"answer": "1"}, {"settings": {}}, {"panels": ()}, {"steps": ()}):
        assert dataclasses.replace(trace, **change) != trace


def test_another_version_is_refused():
    (trace,) = reason([sum_question(7, 5)], SumReasoner(), rule="first", n=1).traces
    newer = trace.to_json().replace("verdict-trace/1", "verdict-trace/2")
    with pytest.raises(MalformedRecord, match=r"\$\.schema: expected 'verdict-trace/1'"):
        Trace.from_json(newer)
    with pytest.raises(MalformedRecord, match="not JSON"):
        Trace.from_json("nothing")
    with pytest.raises(MalformedRecord, match="expected an object"):
        Trace.from_json("[]")


def test_the_chain_joins_chosen_steps_by_blank_lines():
    script = {"q": [[said("a"), said("b")], [said("c")] * 2, [said("", "eos")] * 2]}
    result = reason([Question("q", "?")], ScriptedReasoner(script), rule="first", n=2)
    assert result.traces[0].chain == "a\n\nc"
    assert len(result.traces[0].steps) == 3


def test_pictures_are_named_by_path_or_content(tmp_path):
    path = tmp_path / "a.png"
    assert image_name(path) == str(path)
    assert image_name(b"abc") == "bytes sha256:ba7816bf8f01cfea"
    red, blue = (Image.new("RGB", (4, 2), colour) for colour in ("red", "blue"))
    assert image_name(red).startswith("RGB 4x2 sha256:")
    assert image_name(red) != image_name(blue)
    question = Question("q", "?", images=(Path("x.png"), b"abc"))
    reasoner = ScriptedReasoner({"q": [[said("Answer: 1")]]})
    (trace,) = reason([question], reasoner, rule="first", n=1).traces
    assert trace.images == ("x.png", "bytes sha256:ba7816bf8f01cfea")


def test_parameters_are_written_out():
    coupling = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    given_parameters = RuleParameters(
        stubbornness=jnp.array([2.0, 0.5]), coupling=coupling, tau=0.25, epsilon=jnp.array(0.5)
    )
    numbers = RuleSettings.of(given_parameters)
    assert numbers.stubbornness == (2.0, 0.5)
    assert numbers.coupling == ((0.0, 1.0), (1.0, 0.0))
    assert (numbers.tau, numbers.epsilon) == (0.25, 0.5)
    assert (numbers.vote_score, numbers.max_std) == (0.6, 0.1)
    with pytest.raises(TypeError):
        RuleSettings.of(RuleParameters(tau=jnp.array([0.1, 0.2])))


def test_only_records_have_a_json_form():
    with pytest.raises(TypeError, match="no JSON form for set"):
        encode({1, 2})
    with pytest.raises(TypeError, match="no JSON form for the annotation"):
        json_schema(dataclasses.make_dataclass("Odd", [("x", list[int])]))


def test_a_whole_number_is_read_where_a_float_stands():
    """Other writers drop the point: 1.0 comes back as 1."""
    (trace,) = reason([sum_question(7, 5)], SumReasoner(), rule="first", n=1).traces
    value = json.loads(trace.to_json())
    value["steps"][0]["candidates"][0]["logprob"] = -1
    read = Trace.from_json(json.dumps(value)).steps[0].candidates[0].logprob
    assert (read, type(read)) == (-1.0, float)
