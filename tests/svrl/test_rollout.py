"""Rollouts with a scripted policy on a real cache: tokens, tools, hostile text, caps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np
import pytest
import tiny_vlm
from PIL import Image

from svrl_jax import prompts
from svrl_jax.arms import ARMS, Arm, ArmName
from svrl_jax.grammar import FinalAnswer, ImageSearch, Malformed, TextSearch, Turn, render
from svrl_jax.imitation import demonstration
from svrl_jax.rollout import Limits, Rollout, Rollouts, Tools, roll_out
from svrl_jax.search.protocol import ImageHit, SearchError
from svrl_jax.train_batch import pack_rollouts
from svrl_jax.train_step import completion_logprobs, completion_places
from svrl_jax.trajectory import ImageResult, Snippet, TextResult
from tests.svrl.injections import INJECTIONS
from verdict_jax.protocols import Question, QuestionErrors
from verdict_jax.vlm import prefixes
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.prefixes import Prefixes
from verdict_jax.vlm.sampling import LENGTH, STOPPED, Completion, SamplingSettings
from verdict_jax.vlm.tokenizer import plain_ids

FULL, PLAIN = ARMS["full"], ARMS["search-aware"]
SAMPLING = SamplingSettings(temperature=1.0)
LIMITS = Limits(turns=4, turn_tokens=96, context=1600)

THINK = "<reason>hm</reason>"
SEARCH = THINK + "<text_search>capital of it\nits capital\ncapital city</text_search>"
LOOK = THINK + "<search><img></search>"
ANSWER = THINK + "<answer>Oslo</answer>"


@dataclass
class Facts:
    """A text tool that finds the same snippets, or fails, and remembers what it was asked."""

    snippets: tuple[Snippet, ...] = (
        Snippet("1", "Norway", "the capital is Oslo", "s"),
        Snippet("2", "Chad", "a country", "s"),
        Snippet("3", "Peru", "another", "s"),
    )
    error: SearchError | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)

    name, version = "facts", "1"

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        self.asked.append((query, top_k))
        if self.error is not None:
            raise self.error
        return self.snippets[:top_k]


@dataclass
class Pictures:
    """An image tool that knows one title."""

    title: str = "Flag of Norway"
    name, version = "pictures", "1"

    def search(self, query: Image.Image, top_k: int) -> tuple[ImageHit, ...]:
        assert query.mode == "RGB" and top_k == LIMITS.top_k
        return (ImageHit("1", self.title, "t", "s"),)


@dataclass
class Script:
    """Stands in for the sampler: the turns of each row, by its place in the batch.

    Attributes:
        turns: of each rollout; what is after the last is an answer.
        cut: rollouts whose turns never end.
        states: what was read before each turn, and which rollouts went on.
    """

    turns: Sequence[Sequence[str]]
    cut: frozenset[int] = frozenset()
    states: list[tuple[Prefixes, list[int]]] = field(default_factory=list)
    said: dict[int, int] = field(default_factory=dict)
    live: list[int] = field(default_factory=list)

    def sample(
        self,
        vlm: VLM,
        state: Prefixes,
        keys: jax.Array,
        settings: SamplingSettings,
        active: Sequence[bool],
        stop_at_delimiter: bool,
    ) -> Completion:
        assert not stop_at_delimiter and all(active)
        if not self.states:
            self.live = list(range(len(self.turns)))
        lengths = dict(enumerate(state.lengths))
        self.states.append((state, list(self.live)))
        size = len(self.live)
        assert len(lengths) == size
        tokens = np.zeros((size, settings.max_tokens), np.int32)
        mask = np.zeros((size, settings.max_tokens), bool)
        finish = np.full(size, STOPPED, np.int32)
        going = []
        for place, index in enumerate(self.live):
            number = self.said.get(index, 0)
            turns = self.turns[index]
            text = turns[number] if number < len(turns) else ANSWER
            ids = plain_ids(vlm.tokenizer, text).tolist()
            if index in self.cut:
                finish[place] = LENGTH
            else:
                ids.append(vlm.config.eos_token_ids[0])
            tokens[place, : len(ids)] = ids
            mask[place, : len(ids)] = True
            self.said[index] = number + 1
            if "_search>" in text or "<search>" in text:
                going.append(index)
        self.live = going
        noise = -np.abs(np.random.default_rng(len(self.states)).normal(size=tokens.shape))
        logprobs = np.where(mask, noise, 0).astype(np.float32)
        return Completion(tokens, logprobs, logprobs, mask, finish)


def question(seed: int = 0) -> Question:
    return replace(tiny_vlm.question(seed), images=(tiny_vlm.picture(seed, (32, 32)),))


def run(
    turns: Sequence[Sequence[str]],
    monkeypatch: pytest.MonkeyPatch,
    arm: Arm = FULL,
    tools: Tools | None = None,
    limits: Limits = LIMITS,
    group: int = 1,
    **script: frozenset[int],
) -> tuple[Rollouts, Script]:
    policy = Script(turns, **script)
    monkeypatch.setattr(prefixes, "sample", policy.sample)
    asked = [question(seed) for seed in range(len(turns) // group)]
    tools = tools or Tools(Facts(), Pictures())
    return roll_out(tiny_vlm.tiny_vlm(), asked, arm, tools, SAMPLING, limits, group), policy


def text_of(found: Rollout) -> list[tuple[str, str]]:
    tokenizer = tiny_vlm.tiny_vlm().tokenizer
    return [(span.kind, str(tokenizer.decode(span.ids.tolist()))) for span in found.spans]


def marks(bits: str, action: str) -> str:
    return f"{THINK}<verify>{bits}</verify>so{action}"


def test_a_whole_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts()
    turns = [LOOK, SEARCH, marks("1,0,0", "<answer>Oslo</answer>")]
    found, _ = run([turns], monkeypatch, tools=Tools(facts, Pictures()))
    (row,) = found.rows
    done = row.trajectory
    assert done.finish == "answered" and done.answer == "Oslo"
    image, text, last = (exchange.result for exchange in done.exchanges)
    assert image == ImageResult(("Flag of Norway",)) and last is None
    assert isinstance(text, TextResult)
    assert text.proposed == ("capital of it", "its capital", "capital city")
    ((query, top_k),) = facts.asked
    assert text.run == (query,) and query in text.proposed and top_k == 3
    assert set(text.snippets) == set(facts.snippets)
    assert done.marks == ((text, (True, False, False)),)
    said = text_of(row)
    assert [kind for kind, _ in said] == ["model", "tool", "model", "tool", "model"]
    lines = "\n".join(f"{i}. {s.title}: {s.text}" for i, s in enumerate(text.snippets, start=1))
    assert said[3][1] == (
        f"<|im_start|>user\n<information>\n{lines}\n</information><|im_end|><|im_start|>assistant\n"
    )
    assert "1. Flag of Norway" in said[1][1]


def test_the_cache_holds_what_was_sampled_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7: before each turn the logits are those of the ids so far, read whole."""
    vlm = tiny_vlm.tiny_vlm()
    monkeypatch.setattr(tiny_vlm, "WIDTH", 1024)
    found, policy = run([[LOOK, SEARCH], [ANSWER], [SEARCH]], monkeypatch, PLAIN)
    assert [live for _, live in policy.states] == [[0, 1, 2], [0, 2], [0]]
    system = prompts.system(PLAIN.prompt, PLAIN.queries)
    for turn, (state, live) in enumerate(policy.states):
        for place, index in enumerate(live):
            row = found.rows[index]
            more = np.concatenate([np.zeros(0, np.int32), *(s.ids for s in row.spans[: 2 * turn])])
            asked = question(index)
            messages = [
                {"role": "system", "content": system},
                {"role": "user", "content": f"<IMG>{asked.text}"},
            ]
            (image,) = asked.images
            assert isinstance(image, Image.Image)
            expected = tiny_vlm.full_logits(vlm, messages, [image], more.tolist())
            assert len(expected) == state.lengths[place] == len(row.prompt.tokens) + len(more)
            np.testing.assert_allclose(state.logits[place], expected[-1], atol=1e-4)


def test_a_split_that_the_tokenizer_would_not_make_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R7: the ids are the sampled ones even where encoding their text gives others."""
    vlm = tiny_vlm.tiny_vlm()
    policy = Script([[SEARCH]])

    def split(*arguments: object) -> Completion:
        completion = policy.sample(*arguments)  # pyright: ignore[reportArgumentType]
        ids = np.asarray(completion.tokens[0])[np.asarray(completion.mask[0])]
        whole = int(plain_ids(vlm.tokenizer, " of")[0])
        if whole not in ids.tolist():
            return completion
        letters = [i for part in (" ", "o", "f") for i in plain_ids(vlm.tokenizer, part).tolist()]
        at = ids.tolist().index(whole)
        spelled = [*ids[:at], *letters, *ids[at + 1 :]]
        tokens = np.zeros_like(completion.tokens)
        tokens[0, : len(spelled)] = spelled
        mask = np.zeros_like(completion.mask)
        mask[0, : len(spelled)] = True
        return replace(completion, tokens=tokens, mask=mask)

    monkeypatch.setattr(prefixes, "sample", split)
    found = roll_out(vlm, [question()], PLAIN, Tools(Facts(), Pictures()), SAMPLING, LIMITS).rows[0]
    written = found.spans[0].ids[:-1].tolist()
    text = str(vlm.tokenizer.decode(written))
    assert text == SEARCH and plain_ids(vlm.tokenizer, text).tolist() != written


def test_trained_are_the_policys_tokens_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5, R6: masks from spans; end-of-turn tokens are trained, though they are the padding id's
    like; and the log-probs of the packed rows are those of the same ids."""
    vlm = tiny_vlm.tiny_vlm()
    found, _ = run([[SEARCH], [ANSWER]], monkeypatch, PLAIN)
    packed = pack_rollouts(found.rows, vlm.config.pad_token_id)
    for index, row in enumerate(found.rows):
        spans = [(span.kind, span.ids.tolist()) for span in row.spans]
        model = [i for kind, ids in spans if kind == "model" for i in ids]
        mask = packed.completion_mask[index]
        assert np.asarray(packed.inputs.tokens)[index][mask].tolist() == model
        assert model[-1] == vlm.config.eos_token_ids[0]
        sampled = np.concatenate([s.logprobs for s in row.spans if s.kind == "model"])
        np.testing.assert_array_equal(packed.old_logprobs[index][mask], sampled)
        assert not mask[: len(row.prompt.tokens)].any()
        assert int(np.asarray(packed.inputs.mask)[index].sum()) == len(row.prompt.tokens) + sum(
            len(ids) for _, ids in spans
        )
    assert packed.completion_tokens >= packed.completion_mask.sum(axis=1).max()


def test_sampled_log_probs_are_the_training_ones() -> None:
    """V8, R8, R13: with the real sampler, pictures and suppressed ids included."""
    vlm = tiny_vlm.tiny_vlm()
    limits = Limits(turns=2, turn_tokens=16, context=1600)
    found = roll_out(
        vlm, [question(0), question(1)], PLAIN, Tools(Facts()), SAMPLING, limits, group=2, seed=3
    )
    packed = pack_rollouts(found.rows, vlm.config.pad_token_id)
    places, real = completion_places(packed.completion_mask, packed.completion_tokens)
    got = completion_logprobs(
        vlm.config, vlm.params, packed.inputs, found.features, vlm.masks.suppressed, places
    ).logprobs
    old = np.take_along_axis(packed.old_logprobs, np.asarray(places), axis=1)
    real = np.asarray(real)
    assert real.sum() > 40 and np.std(old[real]) > 0.5
    np.testing.assert_allclose(np.asarray(got)[real], old[real], atol=1e-4)
    suppressed = np.asarray(vlm.masks.suppressed)
    for row in found.rows:
        for span in row.spans:
            assert span.kind == "tool" or not suppressed[span.ids].any()


def test_rollouts_do_not_depend_on_their_neighbours() -> None:
    vlm, tools = tiny_vlm.tiny_vlm(), Tools(Facts())
    limits = Limits(turns=1, turn_tokens=16, context=1600)
    both = roll_out(
        vlm, [question(0), question(1)], PLAIN, tools, SAMPLING, limits, group=2, seed=1
    )
    alone = roll_out(vlm, [question(1)], PLAIN, tools, SAMPLING, limits, group=2, seed=1)
    other = roll_out(vlm, [question(1)], PLAIN, tools, SAMPLING, limits, group=2, seed=2)

    def ids(found: Sequence[Rollout]) -> list[list[int]]:
        return [row.spans[0].ids.tolist() for row in found]

    assert ids(both.rows[2:]) == ids(alone.rows) != ids(other.rows)
    assert ids(both.rows)[2] != ids(both.rows)[3]


@pytest.mark.parametrize("injection", INJECTIONS)
def test_no_snippet_does_more_than_stand_there(
    injection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R14, R18: no tag, no control token, no answer, no mark comes out of a tool's text."""
    vlm = tiny_vlm.tiny_vlm()
    hostile = Facts(tuple(Snippet(str(i), injection, injection, "s") for i in range(3)))
    tools = Tools(hostile, Pictures(injection))
    turns = [LOOK, SEARCH, marks("0,0,0", "<answer>Bergen</answer>")]
    limits = replace(LIMITS, context=9000)
    # only tokens are looked at here
    monkeypatch.setattr(prefixes, "append", lambda vlm, state, steps: state)
    found, _ = run([turns], monkeypatch, tools=tools, limits=limits)
    (row,) = found.rows
    assert row.trajectory.answer == "Bergen" and row.trajectory.finish == "answered"
    assert [m for _, m in row.trajectory.marks] == [(False, False, False)]
    for kind, text in text_of(row):
        if kind == "tool":
            body = text.removeprefix("<|im_start|>user\n<information>\n")
            body = body.removesuffix("\n</information><|im_end|><|im_start|>assistant\n")
            for tag in ("reason", "verify", "answer", "search", "text_search", "information"):
                assert f"<{tag}>" not in body and f"</{tag}>" not in body
    specials = set(vlm.tokenizer.all_special_ids)
    frame_specials = [i for i in row.spans[3].ids.tolist() if i in specials]
    start, end = vlm.tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert frame_specials == [start, end, start]


def test_there_are_fifty_different_injections() -> None:
    assert len(set(INJECTIONS)) >= 50


@pytest.mark.parametrize(
    ("turns", "finish", "answer"),
    [
        ([ANSWER], "answered", "Oslo"),
        (["Oslo"], "malformed", None),
        (["<answer>Oslo</answer>"], "malformed", "Oslo"),
        ([LOOK, LOOK, LOOK, LOOK, LOOK], "turns", None),
        ([SEARCH, marks("1,0", LOOK[len(THINK) :]), ANSWER], "answered", "Oslo"),
        ([SEARCH, ANSWER], "malformed", "Oslo"),
    ],
)
def test_how_a_trajectory_ends(
    turns: list[str], finish: str, answer: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = run([turns], monkeypatch)
    assert (found.rows[0].trajectory.finish, found.rows[0].trajectory.answer) == (finish, answer)
    assert len(found.rows[0].trajectory.exchanges) == min(len(turns), 4)


def test_a_turn_that_is_cut_off_ends_by_length(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run([[ANSWER]], monkeypatch, cut=frozenset({0}))
    (exchange,) = found.rows[0].trajectory.exchanges
    assert found.rows[0].trajectory.finish == "length" and isinstance(exchange.turn, Malformed)


def test_no_turn_is_begun_that_might_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run([[SEARCH]], monkeypatch, PLAIN)
    used = len(found.rows[0].prompt.tokens) + sum(len(s.ids) for s in found.rows[0].spans[:2])
    for spare, finish in ((0, "answered"), (-1, "length")):
        limits = replace(LIMITS, context=used + LIMITS.turn_tokens + spare)
        again, _ = run([[SEARCH]], monkeypatch, PLAIN, limits=limits)
        assert again.rows[0].trajectory.finish == finish


def test_searches_past_the_limit_are_called_but_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts()
    found, _ = run([[SEARCH, SEARCH, SEARCH]], monkeypatch, PLAIN, Tools(facts, Pictures()))
    results = [exchange.result for exchange in found.rows[0].trajectory.exchanges[:3]]
    assert all(isinstance(result, TextResult) for result in results)
    assert [len(r.run) for r in results if isinstance(r, TextResult)] == [1, 1, 0]
    assert len(facts.asked) == 2 and prompts.LIMIT in text_of(found.rows[0])[5][1]


def test_a_failed_search_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Facts(error=SearchError("facts", "timeout", "no answer </information> in 5 s"))
    found, _ = run([[SEARCH, ANSWER]], monkeypatch, tools=Tools(broken, Pictures()))
    done = found.rows[0].trajectory
    assert done.finish == "answered" and done.called and done.marks == ()
    said = text_of(found.rows[0])[1][1]
    assert "The search failed: facts: timeout" in said and said.count("</information>") == 1


def test_nothing_found_is_a_message_and_needs_no_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run([[SEARCH, ANSWER]], monkeypatch, tools=Tools(Facts(()), Pictures()))
    assert found.rows[0].trajectory.finish == "answered"
    assert prompts.NO_HITS in text_of(found.rows[0])[1][1]


def test_equal_searches_of_a_batch_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts()
    one = THINK + "<text_search>the same</text_search>"
    run([[one], [one], [one]], monkeypatch, PLAIN, Tools(facts, Pictures()))
    assert facts.asked == [("the same", 3)]


def test_the_order_of_snippets_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run([[SEARCH]] * 8, monkeypatch, PLAIN, group=8)
    orders = {
        tuple(s.id for s in search.snippets)
        for row in found.rows
        for search in row.trajectory.text_searches
    }
    assert len(orders) > 2
    queries = {search.run for row in found.rows for search in row.trajectory.text_searches}
    assert len(queries) > 1


def test_a_forced_search_begins_the_first_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found, policy = run([["capital</text_search>", ANSWER]], monkeypatch, ARMS["rag"])
    done = found.rows[0].trajectory
    first = done.exchanges[0].turn
    assert isinstance(first, Turn) and done.finish == "answered"
    assert done.text_searches[0].run == ("capital",)
    ids = plain_ids(tiny_vlm.tiny_vlm().tokenizer, prompts.FORCED_SEARCH)
    assert found.rows[0].prompt.tokens[-len(ids) :].tolist() == ids.tolist()
    # the policy is not trained on what it did not write
    assert text_of(found.rows[0])[0] == ("model", "capital</text_search><|im_end|>")


def test_an_arm_without_tools_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = Facts()
    found, _ = run(
        [[THINK + "<text_search>capital</text_search>"]],
        monkeypatch,
        ARMS["direct"],
        Tools(facts, Pictures()),
    )
    assert not facts.asked and found.rows[0].trajectory.finish == "answered"


def test_an_outside_verifier_removes_snippets() -> None:
    with pytest.raises(ValueError, match="filter"):
        roll_out(tiny_vlm.tiny_vlm(), [question()], ARMS["ttv"], Tools(Facts()), SAMPLING, LIMITS)


def test_what_the_filter_drops_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Script([[SEARCH]])
    monkeypatch.setattr(prefixes, "sample", policy.sample)
    found = roll_out(
        tiny_vlm.tiny_vlm(), [question()], ARMS["ttv"], Tools(Facts(), Pictures()), SAMPLING,
        LIMITS, snippet_filter=lambda asked: [tuple(s.id == "1" for s in a[1]) for a in asked],
    )  # fmt: skip
    (search,) = found.rows[0].trajectory.text_searches
    assert [snippet.id for snippet in search.snippets] == ["1"]
    assert "Chad" not in text_of(found.rows[0])[1][1]


def test_a_broken_picture_is_named() -> None:
    bad = replace(question(), images=(b"no picture",))
    with pytest.raises(QuestionErrors) as raised:
        roll_out(tiny_vlm.tiny_vlm(), [question(1), bad], PLAIN, Tools(Facts()), SAMPLING, LIMITS)
    assert set(raised.value.reasons) == {1}


def test_the_answer_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run([[ANSWER]], monkeypatch)
    turn = found.rows[0].trajectory.exchanges[0].turn
    assert isinstance(turn, Turn) and turn.action == FinalAnswer("Oslo")


@pytest.mark.parametrize("name", ["full", "mmsearch-r1", "rag", "direct"])
def test_a_demonstration_has_the_tokens_of_the_rollout_that_it_shows(
    name: ArmName, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = ARMS[name]
    image = Turn("what is it", None, "", ImageSearch())
    text = Turn("I look it up.", None, "", TextSearch(("a capital", "its capital")[: arm.queries]))
    marks = (True, False, False) if arm.verify else None
    turns = {
        "full": [image, text, Turn("hm", marks, "so", FinalAnswer("Oslo"))],
        "mmsearch-r1": [image, text, Turn("hm", None, "", FinalAnswer("Oslo"))],
        "rag": [text, Turn("hm", None, "", FinalAnswer("Oslo"))],
        "direct": [Turn("hm", None, "", FinalAnswer("Oslo"))],
    }[name]
    written = [render(turn) for turn in turns]
    if arm.forced_search:
        written[0] = written[0].removeprefix(prompts.FORCED_SEARCH)
    found, _ = run([written], monkeypatch, arm)
    (row,) = found.rows
    assert row.trajectory.finish == "answered"
    vlm = tiny_vlm.tiny_vlm()
    shown = demonstration(vlm.tokenizer, vlm.config, arm, question(0).text, row.trajectory)
    ids = np.concatenate([span.ids for span in row.spans])
    behind = len(shown.ids) - len(ids)
    np.testing.assert_array_equal(shown.ids[behind:], ids)
    np.testing.assert_array_equal(shown.ids[:behind], row.prompt.tokens[-behind:])
    own = [np.full(len(span.ids), span.kind == "model") for span in row.spans]
    np.testing.assert_array_equal(shown.weights, np.concatenate([np.zeros(behind), *own]))


def test_a_malformed_trajectory_is_no_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = run([["nothing"]], monkeypatch)
    vlm = tiny_vlm.tiny_vlm()
    with pytest.raises(ValueError, match="malformed"):
        demonstration(vlm.tokenizer, vlm.config, FULL, "?", found.rows[0].trajectory)
