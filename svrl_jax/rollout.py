"""Rollouts: the policy's turns and its searches, in lockstep for a batch.

Token-in, token-out: what the policy reads of its own turns are the ids that it sampled, never a
text encoded again. The cache is extended turn by turn. A tool's text is plain text in which no tag
stands, so it can neither close its block nor open one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, Int32
from PIL import Image

from svrl_jax import prompts
from svrl_jax.arms import Arm
from svrl_jax.grammar import (
    FinalAnswer,
    ImageSearch,
    Malformed,
    TextSearch,
    Turn,
    parse,
    unique_queries,
)
from svrl_jax.messages import message_ids, tool_message
from svrl_jax.search.batch import search_all
from svrl_jax.search.protocol import ImageHit, ImageTool, Request, SearchError, TextTool
from svrl_jax.search.ranking import shuffle
from svrl_jax.trajectory import (
    Exchange,
    Finish,
    ImageResult,
    Snippet,
    TextResult,
    Trajectory,
)
from verdict_jax.asking import question_rows
from verdict_jax.keys import sampling_keys
from verdict_jax.protocols import Question
from verdict_jax.vlm import prefixes
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.images import load_image
from verdict_jax.vlm.inputs import Array, PatchBatch
from verdict_jax.vlm.rows import TokenRow
from verdict_jax.vlm.sampling import STOPPED, Completion, SamplingSettings


@dataclass(frozen=True)
class Tools:
    """What the policy may call.

    Attributes:
        text: brings snippets.
        image: brings titles of pictures like the question's; None if there is none.
    """

    text: TextTool
    image: ImageTool | None = None


@dataclass(frozen=True)
class Limits:
    """Caps of a trajectory; ours where no paper is named.

    Attributes:
        turns: of the policy, the answer included (MMSearch-R1: 4).
        turn_tokens: of one turn.
        context: tokens in all, prompt included; a turn that might not fit is not begun.
        top_k: hits of a search.
    """

    turns: int = 4
    turn_tokens: int = 128
    context: int = 1024
    top_k: int = 3

    def __post_init__(self) -> None:
        if min(self.turns, self.turn_tokens, self.context, self.top_k) < 1:
            raise ValueError(f"every limit must be at least 1, got {self}")


SnippetFilter = Callable[
    [Sequence[tuple[Question, tuple[Snippet, ...]]]], Sequence[tuple[bool, ...]]
]
"""An outside verifier: for each question with the snippets found, which of them are kept."""

SpanKind = Literal["model", "tool"]
"""Who wrote a span. Pictures stand in the prompt, by its feature ids."""


@dataclass(frozen=True)
class Span:
    """Tokens behind the prompt, by one writer.

    Attributes:
        kind: model spans are trained, tool spans only attended to.
        ids: the tokens, as sampled or as read.
        logprobs: of a model span's tokens under the distribution they were drawn from, in nats;
            zeros for a tool's.
    """

    kind: SpanKind
    ids: Int32[np.ndarray, "time"]
    logprobs: Float32[np.ndarray, "time"]


@dataclass(frozen=True)
class Rollout:
    """One trajectory, as typed turns and as tokens.

    Attributes:
        trajectory: what was done.
        prompt: what the policy read first, pictures included.
        spans: what followed, in order.
    """

    trajectory: Trajectory
    prompt: TokenRow
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of a batch of questions.

    Attributes:
        rows: `group` of them for each question, one question's after the other's.
        features: of the questions' pictures, which the prompts' feature ids point into.
        patches: what they were computed from.
    """

    rows: tuple[Rollout, ...]
    features: Float[Array, "images units width"] | None
    patches: PatchBatch | None


@dataclass
class _Row:
    """A rollout while it runs; the only thing here that changes."""

    question: Question
    way: int
    prompt: TokenRow
    forced: str
    exchanges: list[Exchange] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def length(self) -> int:
        return len(self.prompt.tokens) + sum(len(span.ids) for span in self.spans)

    @property
    def verifies(self) -> bool:
        """Whether the turn before brought snippets."""
        result = self.exchanges[-1].result if self.exchanges else None
        return isinstance(result, TextResult) and bool(result.snippets)

    def count(self, kind: type[TextResult] | type[ImageResult]) -> int:
        return sum(isinstance(exchange.result, kind) for exchange in self.exchanges)

    def draw(self, purpose: Literal["query", "order"], seed: int, size: int) -> int:
        """A number below `size`, by purpose, run, question, rollout and turn."""
        name = zlib.crc32(f"{purpose} {self.question.id}".encode())
        rng = np.random.default_rng((seed, name, self.way, len(self.exchanges)))
        return int(rng.integers(size))


def roll_out(
    vlm: VLM,
    questions: Sequence[Question],
    arm: Arm,
    tools: Tools,
    sampling: SamplingSettings,
    limits: Limits,
    group: int = 1,
    seed: int = 0,
    snippet_filter: SnippetFilter | None = None,
) -> Rollouts:
    """Lets the policy work on each question `group` times.

    A rollout is a function of the policy, its question, its place in the group and the seed, not
    of its neighbours (but for the last bits of sums in other buckets).

    Args:
        vlm: the policy.
        questions: of one batch, with their pictures.
        arm: prompt, grammar, searches.
        tools: what is called.
        sampling: how tokens are drawn; its max_tokens is replaced by the limit of a turn.
        limits: caps.
        group: rollouts of each question.
        seed: of sampling, of the draw among queries, of the order of snippets.
        snippet_filter: for an arm that is filtered.

    Raises:
        QuestionErrors: questions whose picture cannot be read, or whose prompt is too long.
        ValueError: the arm is filtered and there is no filter, or the other way round.
    """
    if arm.filtered != (snippet_filter is not None):
        raise ValueError("a filter of snippets belongs to a filtered arm, and to no other")
    sampling = replace(sampling, max_tokens=limits.turn_tokens)
    forced = prompts.FORCED_SEARCH if arm.forced_search else ""
    system = prompts.system(arm.prompt, arm.queries)
    prompt_rows, pictures = question_rows(vlm, questions, lambda _: system, forced)
    read = prefixes.read_prompts(vlm, prompt_rows, bucket(len(prompt_rows)), pictures.features)
    sources = [index for index in range(len(questions)) for _ in range(group)]
    state = prefixes.take(read, sources, bucket(len(sources)))
    rows = [
        _Row(questions[index], place % group, prompt_rows[index], forced)
        for place, index in enumerate(sources)
    ]
    live = list(range(len(rows)))
    for turn in range(limits.turns):
        state, live = _begin(rows, live, state, limits)
        if not live:
            break
        keys = sampling_keys(seed, [row.question.id for row in rows], turn, group)
        chosen = keys[np.array(live), np.array([rows[i].way for i in live])][:, None]
        completion = prefixes.sample(vlm, state, chosen, sampling, [True] * len(live), False)
        for place, index in enumerate(live):
            _read_turn(vlm, rows[index], completion, place, arm)
        searching = [i for i in live if rows[i].finish is None]
        messages = _search([rows[i] for i in searching], arm, tools, limits, seed, snippet_filter)
        if turn + 1 == limits.turns:
            # the search counts, but nobody is left to read what it brought
            break
        for index, message in zip(searching, messages, strict=True):
            rows[index].spans.append(_tool_span(vlm, message))
        state = _kept(state, live, searching)
        state = prefixes.append(
            vlm, state, [np.concatenate([s.ids for s in rows[i].spans[-2:]]) for i in searching]
        )
        live = searching
    return Rollouts(tuple(map(_finished, rows)), pictures.features, pictures.patches)


def _begin(
    rows: Sequence[_Row], live: Sequence[int], state: prefixes.Prefixes, limits: Limits
) -> tuple[prefixes.Prefixes, list[int]]:
    """Without the rows that have no room for another turn."""
    fits = [i for i in live if rows[i].length + limits.turn_tokens <= limits.context]
    for index in set(live) - set(fits):
        rows[index].finish = "length"
    if len(fits) == len(live):
        return state, list(live)
    return _kept(state, live, fits), fits


def _kept(state: prefixes.Prefixes, live: Sequence[int], kept: Sequence[int]) -> prefixes.Prefixes:
    """Of the state of the live rows, that of the ones that go on."""
    places = {index: place for place, index in enumerate(live)}
    return prefixes.take(state, [places[i] for i in kept], bucket(len(kept)))


def _read_turn(vlm: VLM, row: _Row, completion: Completion, place: int, arm: Arm) -> None:
    """Appends what the policy wrote, and ends the rollout where that ends it."""
    mask = np.asarray(completion.mask[place])
    ids = np.asarray(completion.tokens[place])[mask].astype(np.int32)
    logprobs = np.asarray(completion.logprobs[place])[mask].astype(np.float32)
    row.spans.append(Span("model", ids, logprobs))
    stopped = int(completion.finish[place]) == STOPPED
    text = str(vlm.tokenizer.decode(ids[:-1].tolist() if stopped else ids.tolist()))
    if not row.exchanges:
        text = row.forced + text
    turn = parse(text, arm.queries, arm.verify and row.verifies)
    if not stopped:
        # a turn that was cut off has no end; what it answered may still be right
        turn = Malformed("not closed", turn.answer if isinstance(turn, Malformed) else None)
        row.finish = "length"
    elif isinstance(turn, Malformed):
        row.finish = "malformed"
    elif isinstance(turn.action, FinalAnswer):
        row.finish = "answered"
    row.exchanges.append(Exchange(turn))


def _search(
    rows: Sequence[_Row],
    arm: Arm,
    tools: Tools,
    limits: Limits,
    seed: int,
    snippet_filter: SnippetFilter | None,
) -> list[str]:
    """Runs the search of each row's last turn; what the tools say, one text per row."""
    text_requests: dict[int, tuple[str, Request[str]]] = {}
    image_requests: dict[int, Request[Image.Image]] = {}
    for place, row in enumerate(rows):
        turn = row.exchanges[-1].turn
        assert isinstance(turn, Turn)
        if isinstance(turn.action, TextSearch):
            queries = unique_queries(turn.action.queries)
            if row.count(TextResult) < arm.text_searches and queries:
                query = queries[row.draw("query", seed, len(queries))]
                text_requests[place] = query, Request(query, limits.top_k)
        elif row.count(ImageResult) < arm.image_searches and row.question.images:
            picture = load_image(row.question.images[0])
            image_requests[place] = Request(picture, limits.top_k)
    found = dict(
        zip(
            text_requests,
            search_all(tools.text, [request for _, request in text_requests.values()]),
            strict=True,
        )
    )
    if snippet_filter is not None:
        found = _filtered(rows, found, snippet_filter)
    seen: dict[int, tuple[ImageHit, ...] | SearchError] = {}
    if tools.image is not None:
        seen = dict(
            zip(image_requests, search_all(tools.image, [*image_requests.values()]), strict=True)
        )
    said = []
    for place, row in enumerate(rows):
        exchange = row.exchanges[-1]
        assert isinstance(exchange.turn, Turn)
        result: TextResult | ImageResult
        if isinstance(exchange.turn.action, TextSearch):
            run = (text_requests[place][0],) if place in text_requests else ()
            order = row.draw("order", seed, 2**32)
            result = _text_result(exchange.turn.action, run, found.get(place), order)
        else:
            assert isinstance(exchange.turn.action, ImageSearch)
            result = _image_result(seen.get(place))
        row.exchanges[-1] = replace(exchange, result=result)
        said.append(tool_message(result))
    return said


def _filtered(
    rows: Sequence[_Row],
    found: dict[int, tuple[Snippet, ...] | SearchError],
    snippet_filter: SnippetFilter,
) -> dict[int, tuple[Snippet, ...] | SearchError]:
    asked = {
        place: (rows[place].question, snippets)
        for place, snippets in found.items()
        if not isinstance(snippets, SearchError)
    }
    kept = snippet_filter([*asked.values()])
    return found | {
        place: tuple(s for s, keep in zip(asked[place][1], marks, strict=True) if keep)
        for place, marks in zip(asked, kept, strict=True)
    }


def _text_result(
    action: TextSearch,
    run: tuple[str, ...],
    found: tuple[Snippet, ...] | SearchError | None,
    order: int,
) -> TextResult:
    """The snippets in an order drawn anew, so that the first is not the likeliest."""
    if found is None:
        return TextResult(action.queries, run, (), prompts.LIMIT)
    if isinstance(found, SearchError):
        return TextResult(action.queries, run, (), prompts.failure(str(found)))
    shown = shuffle(found, order)
    ranks = {snippet.id: rank for rank, snippet in enumerate(found)}
    return TextResult(action.queries, run, shown, ranks=tuple(ranks[s.id] for s in shown))


def _image_result(found: tuple[ImageHit, ...] | SearchError | None) -> ImageResult:
    if found is None:
        return ImageResult((), prompts.LIMIT)
    if isinstance(found, SearchError):
        return ImageResult((), prompts.failure(str(found)))
    return ImageResult(tuple(hit.title for hit in found))


def _tool_span(vlm: VLM, message: str) -> Span:
    ids = message_ids(vlm.tokenizer, vlm.config, message)
    return Span("tool", ids, np.zeros(len(ids), np.float32))


def _finished(row: _Row) -> Rollout:
    trajectory = Trajectory(row.question.id, tuple(row.exchanges), row.finish or "turns")
    return Rollout(trajectory, row.prompt, tuple(row.spans))
