"""The loop on toys: what it chooses, how chains end, and that traces are reproducible."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Bool, Float
from toys import SUM_JUDGES, ScriptedReasoner, SumReasoner, judge_sums, said, sum_question

from verdict_jax import decisions
from verdict_jax.keys import rule_keys, sampling_keys
from verdict_jax.lifting import lift
from verdict_jax.protocols import Candidate, Question, QuestionErrors
from verdict_jax.reasoning import ArgumentError, reason
from verdict_jax.rules import RuleParameters
from verdict_jax.tree import Tree

QUESTIONS = (
    sum_question(7, 5, 9),
    sum_question(3, 4),
    sum_question(10, 20, 30, 40),
    sum_question(1, 1, 1, 1, 1),
    sum_question(6, 2, 8),
)
PANEL = lift(judge_sums, SUM_JUDGES)


def by_text(table: dict[str, Sequence[float | None]], judges=SUM_JUDGES, name="table"):
    """A panel that looks scores up by the candidate's text; None is a judge that failed."""
    seen: list[str] = []

    def judge(
        questions: Sequence[Question],
        steps: Sequence[Sequence[Candidate]],
        candidates: Sequence[Sequence[Candidate]],
    ) -> tuple[Float[np.ndarray, "b n m"], Bool[np.ndarray, "b n m"]]:
        seen.extend(candidate.text for row in candidates for candidate in row)
        rows = [[table[candidate.text] for candidate in row] for row in candidates]
        mask = np.array([[[s is not None for s in c] for c in row] for row in rows])
        return np.array([[[s or 0.0 for s in c] for c in row] for row in rows]), mask

    return lift(judge, judges, name=name), seen


def run_script(steps, panels=(), **options):
    question = Question("q", "?")
    return reason([question], ScriptedReasoner({"q": steps}), panels, **options)


# --- the right answer


def test_verdict_finds_the_right_sums_where_base_does_not():
    questions = [sum_question(a, b, c) for a in (3, 8) for b in (5, 6) for c in (2, 9, 11)]
    base = reason(questions, SumReasoner(), rule="first", n=1)
    judged = reason(questions, SumReasoner(), [PANEL], n=8)
    right = [trace.answer == trace.gold for trace in judged.traces]
    assert all(right)
    assert sum(trace.answer == trace.gold for trace in base.traces) < 6
    assert all(trace.finish == "answered" for trace in judged.traces)
    trace = judged.traces[0]
    assert trace.chain == "3 + 5 = 8\n\n8 + 2 = 10\n\nAnswer: 10"
    assert [step.final for step in trace.steps] == [False, False, False]


def test_oracle_at_n_is_the_rule_max_on_a_judge_that_knows_the_gold_chain():
    """A ceiling: the right candidate is taken wherever there is one, whatever judges would say."""

    def knows_gold(questions, steps, candidates):
        scores, mask = judge_sums(questions, steps, candidates)
        gold = np.repeat(scores.min(axis=-1, keepdims=True) > 0.5, 2, axis=-1)
        return gold.astype(float), mask[..., :2]

    oracle = lift(knows_gold, ("gold", "gold again"), name="oracle")
    options = {"rule": "max", "parameters": RuleParameters(np.ones(2)), "n": 2}
    questions = [sum_question(a, b, c) for a in (3, 8) for b in (5, 6) for c in (2, 9, 11)]
    traces = reason(questions, SumReasoner(), [oracle], **options).traces
    offered = taken = 0
    for trace in traces:
        for step in trace.steps:
            right = [row == (1.0, 1.0) for row in step.raw]
            assert step.chosen is not None and right[step.chosen] == any(right)
            offered += any(right)
            taken += right[0]
        assert (trace.answer == trace.gold) == all((1.0, 1.0) in step.raw for step in trace.steps)
    assert 0 < taken < offered < sum(len(trace.steps) for trace in traces)


def test_a_step_records_raw_and_settled_scores_of_the_worked_example():
    panel, _ = by_text({"x": (0.9, 0.3, 0.9), "y": (0.7, 0.7, 0.7)})
    (trace,) = run_script([[said("x"), said("y", "eos")]], [panel], n=2).traces
    (step,) = trace.steps
    assert step.raw == ((0.9, 0.3, 0.9), (0.7, 0.7, 0.7))
    np.testing.assert_allclose(step.consensus[0], (0.8038, 0.5446, 0.7746), atol=5e-5)
    np.testing.assert_allclose(step.mean, (0.7077, 0.7), atol=5e-5)
    np.testing.assert_allclose(step.dispersion, (0.1087, 0.0), atol=5e-5)
    assert (step.accepted, step.chosen, step.fallback) == ((False, True), 1, False)
    assert (trace.finish, trace.answer, trace.chain) == ("eos", None, "y")


def test_the_fallback_is_recorded():
    panel, _ = by_text({"x": (0.9, 0.3, 0.9), "y": (0.2, 0.2, 0.2)})
    (step, *_) = run_script([[said("y"), said("x")]], [panel], n=2, max_steps=1).traces[0].steps
    assert (step.accepted, step.chosen, step.fallback) == ((False, False), 1, True)


def test_several_panels_stand_side_by_side():
    first, _ = by_text({"x": (0.1,), "y": (0.8,)}, ("visual",), "a")
    second, _ = by_text({"x": (0.2, 0.3), "y": (0.7, 0.6)}, ("logical", "contextual"), "b")
    (trace,) = run_script([[said("x"), said("y", "eos")]], [first, second], n=2).traces
    assert trace.steps[0].raw == ((0.1, 0.2, 0.3), (0.8, 0.7, 0.6))
    assert [panel.model_id for panel in trace.panels] == ["a", "b"]
    stubborn = RuleParameters(stubbornness=jnp.array([1.0, 1.0]))
    with pytest.raises(ValueError, match="the panels have 3 judges"):
        run_script([[said("x")]], [first, second], n=1, parameters=stubborn)


def test_one_judge_has_nothing_to_settle():
    panel, _ = by_text({"x": (0.4,)}, ("visual",))
    (trace,) = run_script([[said("x")]], [panel], n=1, rule="first", max_steps=1).traces
    step = trace.steps[0]
    assert (step.raw, step.consensus, step.mean) == (((0.4,),), ((None,),), (None,))
    assert (step.chosen, step.failures, step.unjudged) == (0, (None,), False)
    with pytest.raises(ValueError, match="needs at least 2 judges, got 1"):
        run_script([[said("x")]], [panel], n=1)


# --- failures


def test_a_missing_judge_is_masked_and_the_game_settled_for_the_rest():
    panel, _ = by_text({"x": (None, 0.8, 0.4), "y": (None, 0.9, None)})
    (trace,) = run_script([[said("x"), said("y")]], [panel], n=2, max_steps=1).traces
    step = trace.steps[0]
    a = np.array([1.0, 0.8]) / (np.array([1.0, 0.8]) + 2.0)
    mean = (a * [0.8, 0.4]).sum() / a.sum()
    np.testing.assert_allclose(step.mean[0], mean, atol=1e-6)
    assert step.raw[0] == (None, 0.8, 0.4)
    assert step.consensus[0][0] is None
    assert step.mean[1] is None and step.dispersion[1] is None
    assert step.failures == (None, "1 of 3 judges gave a score")
    assert (step.chosen, step.unjudged) == (0, False)


def test_a_step_that_nobody_could_judge_takes_the_highest_logprob_per_token():
    panel, _ = by_text({t: (None, None, 0.9) for t in "xyzw"})
    proposed = [
        said("x", logprob=-8.0, tokens=4),
        said("y", logprob=-3.0, tokens=3),
        said("z", logprob=-2.5, tokens=1),
        said("w", logprob=float("nan"), tokens=1),
    ]
    (trace,) = run_script([proposed], [panel], max_steps=1).traces
    step = trace.steps[0]
    assert (step.chosen, step.unjudged, step.fallback) == (1, True, False)
    assert step.accepted == (False,) * 4
    assert step.failures == ("1 of 3 judges gave a score",) * 4


def test_blank_candidates_are_no_choice_and_are_not_judged():
    panel, seen = by_text({"x": (0.1, 0.1, 0.1)})
    proposed = [said(" \n", logprob=0.0), said("x", "eos", -9.0), said("", logprob=0.0)]
    (trace,) = run_script([proposed], [panel], n=3).traces
    step = trace.steps[0]
    assert step.failures == ("empty candidate", None, "empty candidate")
    assert step.raw == ((None,) * 3, (0.1,) * 3, (None,) * 3)
    assert step.chosen == 1
    assert seen == ["x"]
    # Unjudged, a blank one is no choice either, though its log-probability is the highest.
    panel, _ = by_text({"x": (None, None, None)})
    (trace,) = run_script([proposed], [panel], n=3).traces
    assert (trace.steps[0].chosen, trace.steps[0].unjudged) == (1, True)


def test_identical_texts_are_judged_once_and_stay_choices():
    panel, seen = by_text({"x": (0.8, 0.8, 0.8), "y": (0.1, 0.1, 0.1)})
    proposed = [said("y"), said("x"), said("y"), said("x")]
    result = run_script([proposed], [panel], max_steps=1)
    step = result.traces[0].steps[0]
    assert seen == ["y", "x"]
    assert step.raw == ((0.1,) * 3, (0.8,) * 3, (0.1,) * 3, (0.8,) * 3)
    assert (step.chosen, step.accepted) == (1, (False, True, False, True))
    # A uniform rule must keep the duplicates' weight.
    drawn = [
        run_script([proposed], rule="random", max_steps=1, seed=seed).traces[0].steps[0].chosen
        for seed in range(40)
    ]
    assert set(drawn) == {0, 1, 2, 3}


def test_all_blank_ends_the_chain_as_empty():
    panel, seen = by_text({"x": (0.8, 0.8, 0.8)})
    (trace,) = run_script([[said("x")] * 2, [said(""), said("\n", "eos")]], [panel], n=2).traces
    assert (trace.finish, trace.answer, trace.chain) == ("empty", None, "x")
    assert trace.steps[1].chosen is None and not trace.steps[1].unjudged
    assert trace.steps[1].failures == ("empty candidate",) * 2
    assert seen == ["x"]
    # An end-of-chain token at the very start is a chain of nothing.
    assert run_script([[said("", "eos")]], rule="first", n=1).traces[0].finish == "empty"


def test_an_eos_after_the_last_delimiter_is_no_step():
    """J4: "a\\n\\nb\\n\\n<eos>" is two steps, and it is ended, not cut off."""
    script = [[said("a")], [said("b")], [said("", "eos")]]
    (trace,) = run_script(script, rule="first", n=1).traces
    assert trace.finish == "eos"
    assert trace.chain.split("\n\n") == ["a", "b"]


@pytest.mark.parametrize(
    ("last", "finish", "answer"),
    [
        (said("Answer: 4", "eos"), "answered", "4"),
        (said("Answer: 4"), "answered", "4"),
        (said("that is all", "eos"), "eos", None),
        (said("Answer: 4", "length"), "length", None),
        (said("and so", "length"), "length", None),
        (said("and so"), "cap", None),
    ],
)
def test_finish_states(last, finish, answer):
    (trace,) = run_script([[said("a")], [last]], rule="first", n=1, max_steps=2).traces
    assert (trace.finish, trace.answer) == (finish, answer)
    assert len(trace.steps) == 2


def test_the_answer_is_a_letter_where_there_are_choices():
    question = Question("q", "?", choices=("cat", "dog"), answer="B")
    reasoner = ScriptedReasoner({"q": [[said("Answer: dog", "eos")]]})
    assert reason([question], reasoner, rule="first", n=1).traces[0].answer == "B"
    reasoner = ScriptedReasoner({"q": [[said("Answer: A or B", "eos")]]})
    (trace,) = reason([question], reasoner, rule="first", n=1).traces
    assert (trace.finish, trace.answer) == ("answered", None)


def test_prose_that_names_no_choice_does_not_end_a_chain():
    question = Question("q", "?", choices=("cat", "dog"), answer="B")
    prose = "The correct answer is the one that is closest to the camera."
    reasoner = ScriptedReasoner({"q": [[said(prose)], [said("Answer: B", "eos")]]})
    (trace,) = reason([question], reasoner, rule="first", n=1).traces
    assert (trace.finish, trace.answer, len(trace.steps)) == ("answered", "B", 2)
    # A free answer may be as long as that.
    free = dataclasses.replace(question, choices=())
    (trace,) = reason([free], reasoner, rule="first", n=1).traces
    assert (trace.finish, len(trace.steps)) == ("answered", 1)


def test_only_the_last_allowed_step_is_final():
    reasoner = ScriptedReasoner({"q": [[said("a")], [said("b")], [said("c")]]})
    (trace,) = reason([Question("q", "?")], reasoner, rule="first", n=1, max_steps=3).traces
    assert reasoner.finals == [False, False, True]
    assert [step.final for step in trace.steps] == [False, False, True]


def test_questions_that_cannot_be_read_leave_the_others_alone():
    healthy = reason(QUESTIONS, SumReasoner(), [PANEL])
    broken = SumReasoner(
        unreadable={QUESTIONS[0].id: "no such file", QUESTIONS[3].id: "not a picture"}
    )
    result = reason(QUESTIONS, broken, [PANEL])
    assert [t.finish for t in result.traces] == [
        "error",
        "answered",
        "answered",
        "error",
        "answered",
    ]
    assert result.traces[0].error == "no such file"
    assert result.traces[3].error == "not a picture"
    assert result.traces[0].steps == ()
    for row in (1, 2, 4):
        assert result.traces[row] == healthy.traces[row]
    # The batch keeps its size, so the others' arithmetic is what it would have been.
    assert {size for _, size in broken.calls} == {len(QUESTIONS)}
    assert [name for name, _ in broken.calls].count("start") == 2


@dataclasses.dataclass(frozen=True)
class _PickyPanel:
    """A panel that cannot read some of the questions, one complaint at a time."""

    inner: object
    unreadable: tuple[str, ...]

    @property
    def judges(self):
        return PANEL.judges

    @property
    def model_id(self):
        return "picky"

    @property
    def settings(self):
        return {}

    def start(self, questions):
        for row, question in enumerate(questions):
            if question.id in self.unreadable:
                raise QuestionErrors({row: f"judge cannot read {question.id}"})
        return PANEL.start(questions)

    def score(self, state, candidates):
        return PANEL.score(state, candidates)

    def commit(self, state, steps):
        return PANEL.commit(state, steps)

    def take(self, state, rows):
        return PANEL.take(state, rows)


def test_a_panels_errors_are_recorded_too():
    picky = _PickyPanel(PANEL, (QUESTIONS[1].id, QUESTIONS[2].id))
    broken = SumReasoner(unreadable={QUESTIONS[0].id: "no such file"})
    result = reason(QUESTIONS, broken, [picky])
    healthy = reason(QUESTIONS, SumReasoner(), [PANEL])
    assert [trace.error for trace in result.traces] == [
        "no such file",
        f"judge cannot read {QUESTIONS[1].id}",
        f"judge cannot read {QUESTIONS[2].id}",
        None,
        None,
    ]
    assert [trace.steps for trace in result.traces[3:]] == [t.steps for t in healthy.traces[3:]]


def test_a_batch_without_a_readable_question():
    broken = SumReasoner(unreadable={question.id: "gone" for question in QUESTIONS})
    result = reason(QUESTIONS, broken, [PANEL])
    assert {trace.error for trace in result.traces} == {"gone"}
    assert reason([], SumReasoner(), [PANEL]).traces == ()


# --- reproducibility


def test_same_seed_same_trace_and_another_seed_another():
    first = reason(QUESTIONS, SumReasoner(), [PANEL], seed=3)
    again = reason(QUESTIONS, SumReasoner(), [PANEL], seed=3)
    assert first.traces == again.traces
    assert first.trees == again.trees
    assert reason(QUESTIONS, SumReasoner(), [PANEL], seed=4).traces != first.traces


@pytest.mark.parametrize("rule", ["verdict", "random", "no_selection"])
def test_a_trace_does_not_depend_on_its_neighbours(rule):
    together = reason(QUESTIONS, SumReasoner(), [PANEL], rule=rule).traces
    backwards = reason(QUESTIONS[::-1], SumReasoner(), [PANEL], rule=rule).traces
    assert together == backwards[::-1]
    for question, trace in zip(QUESTIONS, together, strict=True):
        assert reason([question], SumReasoner(), [PANEL], rule=rule).traces == (trace,)


def test_costs_are_recorded_and_not_compared():
    (trace,) = reason(QUESTIONS[:1], SumReasoner(), [PANEL]).traces
    cost = trace.steps[0].cost
    assert cost.sampled and cost.judged == 1
    assert min(cost.propose_seconds, cost.judge_seconds, cost.settle_seconds) > 0
    slower = dataclasses.replace(cost, judge_seconds=99.0, sampled=False)
    steps = (dataclasses.replace(trace.steps[0], cost=slower), *trace.steps[1:])
    assert dataclasses.replace(trace, steps=steps) == trace


def test_keys_are_golden_and_distinct():
    """Written down once: stored trees of older runs rest on these keys."""
    keys = np.asarray(jax.random.key_data(sampling_keys(5, ["a", "b"], 2, 3)))
    expected = jax.random.key(np.uint32(5))
    for word in (0, 0xE8B7BE43, 2, 1):  # stream, crc32("a"), step, candidate
        expected = jax.random.fold_in(expected, np.uint32(word))
    assert keys[0, 1].tolist() == jax.random.key_data(expected).tolist()
    seen = {
        tuple(word)
        for seed in (0, 1)
        for step in (0, 1)
        for row in np.asarray(jax.random.key_data(sampling_keys(seed, ["a", "b", "c"], step, 4)))
        for word in row.tolist()
    }
    assert len(seen) == 2 * 2 * 3 * 4


def test_a_rule_draws_from_another_stream_than_the_sampler():
    rule = jax.random.key_data(rule_keys(5, ["a"], 2))
    expected = jax.random.key(np.uint32(5))
    for word in (1, 0xE8B7BE43, 2, 0):
        expected = jax.random.fold_in(expected, np.uint32(word))
    assert rule[0].tolist() == jax.random.key_data(expected).tolist()


# --- the tree


def test_a_stored_tree_replays_without_the_model():
    first = reason(QUESTIONS, SumReasoner(), [PANEL])
    silent = SumReasoner()
    again = reason(QUESTIONS, silent, [PANEL], trees=first.trees)
    assert again.traces == first.traces
    assert again.trees == first.trees
    assert silent.calls == []
    assert (again.sampled, again.judged) == (0, 0)
    assert again.reused == first.sampled == sum(len(t.steps) for t in first.traces)
    assert not any(step.cost.sampled for trace in again.traces for step in trace.steps)


def test_another_rule_samples_only_the_missing_nodes():
    first = reason(QUESTIONS, SumReasoner(), [PANEL])
    reasoner = SumReasoner()
    walked = reason(QUESTIONS, reasoner, [PANEL], rule="min", trees=first.trees)
    fresh = reason(QUESTIONS, SumReasoner(), [PANEL], rule="min")
    assert walked.traces == fresh.traces
    assert walked.sampled + walked.reused == sum(len(trace.steps) for trace in fresh.traces)
    known = sum(len(tree.nodes) for tree in first.trees.values())
    assert sum(len(tree.nodes) for tree in walked.trees.values()) == known + walked.sampled
    assert walked.reused >= len(QUESTIONS)
    # Base and Random need no judges on the same tree.
    random = reason(QUESTIONS, SumReasoner(), rule="random", trees=walked.trees)
    assert random.judged == 0
    assert random.traces == reason(QUESTIONS, SumReasoner(), rule="random").traces


def test_a_late_start_commits_the_stored_steps():
    """A resumed run: the tree of a run cut short, then the rest."""
    short = reason(QUESTIONS, SumReasoner(), [PANEL])
    cut = {
        item: dataclasses.replace(tree, nodes=tuple(n for n in tree.nodes if len(n.path) < 2))
        for item, tree in short.trees.items()
    }
    reasoner = SumReasoner()
    resumed = reason(QUESTIONS, reasoner, [PANEL], trees=cut)
    assert resumed.traces == short.traces
    assert resumed.trees == short.trees
    assert reasoner.calls[:3] == [("start", 5), ("commit", 5), ("commit", 5)]


def test_the_last_steps_candidates_are_not_those_of_an_open_step():
    """The same prefix at the cap is another node: there the reasoner runs to the end."""
    question = QUESTIONS[2]
    long = reason([question], SumReasoner(), [PANEL])
    short = reason([question], SumReasoner(), [PANEL], trees=long.trees, max_steps=2)
    assert (short.sampled, short.reused) == (1, 1)
    assert short.traces[0].steps[-1].candidates[0].text.startswith("Answer:")
    assert reason([question], SumReasoner(), [PANEL], trees=short.trees).traces == long.traces


def test_another_panel_judges_the_stored_candidates_anew():
    first = reason(QUESTIONS, SumReasoner(), [PANEL])
    harsh = lift(
        lambda q, s, c: (0.5 * judge_sums(q, s, c)[0], judge_sums(q, s, c)[1]),
        SUM_JUDGES,
        name="harsh",
    )
    second = reason(QUESTIONS, SumReasoner(), [harsh], trees=first.trees, rule="mean")
    assert second.judged > 0
    raw = first.traces[0].steps[0].raw
    halved = second.traces[0].steps[0].raw
    np.testing.assert_allclose(halved, np.array(raw) / 2)
    # Both stay in the tree.
    third = reason(QUESTIONS, SumReasoner(), [PANEL], trees=second.trees)
    assert third.traces == first.traces
    assert third.judged == 0


def test_a_wide_tree_serves_fewer_candidates():
    wide = reason(QUESTIONS, SumReasoner(), [PANEL], n=8)
    reasoner = SumReasoner()
    narrow = reason(QUESTIONS, reasoner, [PANEL], n=3, trees=wide.trees)
    assert narrow.traces == reason(QUESTIONS, SumReasoner(), [PANEL], n=3).traces
    assert narrow.reused > 0
    with pytest.raises(ValueError, match="asked for 9"):
        reason(QUESTIONS, SumReasoner(), [PANEL], n=9, trees=wide.trees)


def test_a_tree_of_something_else_is_refused():
    trees = reason(QUESTIONS, SumReasoner(), [PANEL]).trees
    with pytest.raises(ValueError, match="another question, choices, picture, model"):
        reason(QUESTIONS, SumReasoner(error_rate=0.5), [PANEL], trees=trees)
    with pytest.raises(ValueError, match="another question, choices, picture, model"):
        reason(QUESTIONS, SumReasoner(), [PANEL], trees=trees, seed=1)
    for change in (
        {"text": "7 + 5 + 8"},
        {"choices": ("20", "21")},
        {"images": (Path("sum.png"),)},
        {"images": (b"another picture",)},
    ):
        other = dataclasses.replace(QUESTIONS[0], **change)
        with pytest.raises(ArgumentError, match="another question, choices, picture, model"):
            reason([other], SumReasoner(), [PANEL], trees=trees)


def test_a_tree_knows_choices_and_pictures_after_json():
    question = dataclasses.replace(QUESTIONS[0], choices=("20", "21"), images=(b"abc",))
    first = reason([question], SumReasoner(), [PANEL])
    stored = {item: Tree.from_json(tree.to_json()) for item, tree in first.trees.items()}
    assert stored[question.id].choices == ("20", "21")
    assert (
        stored[question.id].images == first.traces[0].images == ("bytes sha256:ba7816bf8f01cfea",)
    )
    assert reason([question], SumReasoner(), [PANEL], trees=stored).traces == first.traces


# --- batch shapes


def test_without_buckets_every_call_has_the_batchs_size():
    reasoner = SumReasoner()
    reason(QUESTIONS, reasoner, [PANEL])
    assert {size for _, size in reasoner.calls} == {len(QUESTIONS)}


def test_with_buckets_the_work_is_packed_and_the_traces_are_the_same():
    reasoner = SumReasoner()
    packed = reason(QUESTIONS, reasoner, [PANEL], buckets=(1, 2, 4))
    assert packed.traces == reason(QUESTIONS, SumReasoner(), [PANEL]).traces
    assert [size for name, size in reasoner.calls if name == "propose"] == [5, 5, 4, 2, 1]
    # One question of five lacks its nodes: it alone is sampled, in the smallest bucket.
    trees = {item: tree for item, tree in packed.trees.items() if item != QUESTIONS[2].id}
    reasoner = SumReasoner()
    again = reason(QUESTIONS, reasoner, [PANEL], trees=trees, buckets=(2,))
    assert again.traces == packed.traces
    assert {size for name, size in reasoner.calls if name == "propose"} == {2}
    assert again.sampled == len(packed.traces[2].steps)


def test_a_rule_compiles_once_for_all_batch_sizes():
    many = [sum_question(a, b) for a in range(1, 8) for b in range(1, 7)]
    reason(many[:1], SumReasoner(), [PANEL], parameters=RuleParameters(tau=0.55))
    before = decisions.decide_each._cache_size()
    for size in (2, 3, 7, 33, 42):
        result = reason(many[:size], SumReasoner(), [PANEL], seed=size, max_steps=4)
        assert len(result.traces) == size
    assert decisions.decide_each._cache_size() == before
    # What lies beyond the size of one call is decided like the rest.
    alone = reason(many[40:41], SumReasoner(), [PANEL], seed=42, max_steps=4)
    assert alone.traces == result.traces[40:41]


# --- arguments and contracts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "median"}, "no rule 'median'"),
        ({"n": 0}, "at least 1"),
        ({"max_steps": 0}, "at least 1"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"panels": []}, "needs at least 2 judges, got 0"),
        ({"panels": [PANEL, PANEL]}, "two panels"),
        ({"buckets": (0,)}, "buckets"),
        ({"questions": QUESTIONS[:1] * 2}, "not distinct"),
        *(
            ({"parameters": RuleParameters(**{name: value})}, f"{name} must be one finite number")
            for name in ("tau", "epsilon", "vote_score", "quorum", "max_std")
            for value in (float("nan"), float("inf"), np.array([0.1, 0.2]))
        ),
        *(
            (
                {"parameters": RuleParameters(np.array(stubbornness))},
                rf"stubbornness\[{judge}\] is .* must be positive and finite in float32",
            )
            for stubbornness, judge in (
                ((0.0, 1.0, 1.0), 0),
                ((1.0, -1.0, 1.0), 1),
                ((1.0, 1.0, float("nan")), 2),
                ((1.0, float("inf"), 1.0), 1),
                ((1.0, 1.0, 1e-40), 2),
            )
        ),
        ({"parameters": RuleParameters(np.ones(2))}, "the panels have 3 judges"),
        ({"parameters": RuleParameters(coupling=np.ones((2, 2)))}, "coupling has shape"),
        ({"parameters": RuleParameters(coupling=np.ones((3, 3)) / 3)}, r"coupling\[0\] is"),
    ],
)
def test_wrong_arguments(options, message):
    arguments = {"questions": QUESTIONS, "panels": [PANEL], **options}
    questions, panels = arguments.pop("questions"), arguments.pop("panels")
    reasoner = SumReasoner()
    with pytest.raises(ArgumentError, match=message):
        reason(questions, reasoner, panels, **arguments)
    assert reasoner.calls == []


def test_a_contract_broken_by_a_panel_is_no_mistake_in_the_arguments():
    panel, _ = by_text({"x": (0.5, 1.2, 0.5)})
    with pytest.raises(ValueError) as broken:
        run_script([[said("x")]], [panel], n=1)
    assert not isinstance(broken.value, ArgumentError)


def test_large_seeds_differ():
    a, b = (reason(QUESTIONS[:1], SumReasoner(), [PANEL], seed=s) for s in (2**31, 2**32 - 1))
    assert a.traces[0].steps != b.traces[0].steps


@pytest.mark.parametrize("score", [1.2, -0.1, float("nan")])
def test_an_impossible_score_names_judge_and_item(score):
    panel, _ = by_text({"x": (0.5, score, 0.5)})
    with pytest.raises(ValueError, match="q: judge logical of table gave"):
        run_script([[said("x")]], [panel], n=1)


def test_a_reasoner_that_breaks_its_contract_is_named():
    with pytest.raises(ValueError, match="3 candidates in a tree of 4"):
        run_script([[said("x")] * 3], rule="first")
    reasoner = ScriptedReasoner({"q": [[said("x")]]})
    short = dataclasses.replace(reasoner)
    object.__setattr__(short, "propose", lambda state, keys, final: [])
    with pytest.raises(ValueError, match="proposed for 0 of 1 rows"):
        reason([Question("q", "?")], short, rule="first", n=1)


def test_a_lifted_function_sees_single_distinct_candidates_and_accepted_steps():
    seen = []

    def judge(questions, steps, candidates):
        seen.append(
            [
                (q.id, [s.text for s in accepted], [c.text for c in row])
                for q, accepted, row in zip(questions, steps, candidates, strict=True)
            ]
        )
        return np.full((len(questions), 1, 3), 0.8), np.ones((len(questions), 1, 3), bool)

    script = {
        "p": [[said("a"), said("a")], [said("b", "eos"), said("")]],
        "q": [[said("c", "eos"), said("d")]],
    }
    questions = [Question("p", "?"), Question("q", "?")]
    reason(questions, ScriptedReasoner(script), [lift(judge, SUM_JUDGES)], n=2)
    assert seen == [
        [("p", [], ["a"]), ("q", [], ["c"]), ("q", [], ["d"])],
        [("p", ["a"], ["b"])],
    ]


def test_a_lifted_function_of_the_wrong_shape_is_named():
    flat = lift(
        lambda q, s, c: (np.ones((1, 1, 2)), np.ones((1, 1, 2), bool)), SUM_JUDGES, name="flat"
    )
    with pytest.raises(ValueError, match="flat: expected"):
        run_script([[said("x")]], [flat], n=1)
    with pytest.raises(ValueError, match="distinct"):
        lift(judge_sums, ("a", "a"))
    with pytest.raises(ValueError, match="distinct"):
        lift(judge_sums, ())
