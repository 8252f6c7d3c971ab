"""Prints the card's figures of a policy of the world of flags: `python scripts/evaluate_policy.py`.

Names flags in unseen pictures, reads the answer of held-out pairs from a block that holds it, keeps
to every arm's grammar, knows what it was taught. Everything greedy, but for the grammar, which is
asked of sampled turns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from PIL import Image
from rich.progress import track

from svrl_jax import prompts
from svrl_jax.arms import ARMS, ArmName
from svrl_jax.datasets import flags
from svrl_jax.datasets.flags.attributes import BY_KEY
from svrl_jax.datasets.flags.demonstrations import I_LOOK, naming
from svrl_jax.datasets.flags.tools import flags_tools
from svrl_jax.grammar import FinalAnswer, TextSearch, Turn, parse, render
from svrl_jax.matching import is_gold
from svrl_jax.messages import message_ids, tool_message
from svrl_jax.rollout import Limits, Tools, roll_out
from svrl_jax.search.ranking import shuffle
from svrl_jax.trajectory import TextResult
from verdict_jax.asking import question_rows
from verdict_jax.json_records import encode
from verdict_jax.keys import sampling_keys
from verdict_jax.protocols import Question
from verdict_jax.vlm import prefixes
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.checkpoint import VLM, load_vlm
from verdict_jax.vlm.sampling import SamplingSettings
from verdict_jax.vlm.tokenizer import plain_ids

BUNDLED = Path(__file__).parent.parent / "svrl_jax" / "bundled" / "policy"

AT_ONCE = 64


@dataclass(frozen=True)
class Figures:
    """What the card states, each a share.

    Attributes:
        named: flags that the first thought names, in pictures wider varied than any in training.
        read: held-out pairs answered from a block of three snippets, one of which is evidence.
        known: questions about taught facts answered without tools.
        untaught: the same about pairs that no training touched.
        formed: by arm, sampled trajectories that keep to its grammar up to an answer.
    """

    named: float
    read: float
    known: float
    untaught: float
    formed: dict[ArmName, float]


def asked(item: flags.Item) -> Question:
    return Question(item.id, item.text, (Image.fromarray(item.picture),), answer=item.fact.golds[0])


def direct(vlm: VLM, tools: Tools, items: Sequence[flags.Item]) -> list[tuple[bool, bool]]:
    """Of each item, whether the flag is named and whether the answer is right, without tools."""
    found = []
    for start in track(range(0, len(items), AT_ONCE), "without tools"):
        batch = items[start : start + AT_ONCE]
        greedy = SamplingSettings(temperature=0.0)
        rows = roll_out(vlm, [*map(asked, batch)], ARMS["direct"], tools, greedy, Limits()).rows
        for item, row in zip(batch, rows, strict=True):
            turn = row.trajectory.exchanges[0].turn
            thought = turn.reason if isinstance(turn, Turn) else ""
            named = naming(item.fact.country) in thought
            found.append((named, is_gold(row.trajectory.answer, item.fact.golds)))
    return found


def reads(vlm: VLM, tools: Tools, items: Sequence[flags.Item]) -> list[bool]:
    """Of each item, whether it is answered from a block that holds the evidence."""
    arm = ARMS["full"]
    right = []
    for start in track(range(0, len(items), AT_ONCE), "reading"):
        batch = items[start : start + AT_ONCE]
        rows, encoded = question_rows(
            vlm, [*map(asked, batch)], lambda _: prompts.system(arm.prompt, arm.queries)
        )
        state = prefixes.read_prompts(vlm, rows, bucket(len(rows)), encoded.features)
        state = prefixes.append(vlm, state, [block(vlm, tools, item) for item in batch])
        keys = sampling_keys(0, [item.id for item in batch], 0, 1)
        settings = SamplingSettings(temperature=0.0, max_tokens=128)
        completion = prefixes.sample(vlm, state, keys, settings, [True] * len(batch), False)
        for place, item in enumerate(batch):
            ids = np.asarray(completion.tokens[place])[np.asarray(completion.mask[place])]
            turn = parse(str(vlm.tokenizer.decode(ids[:-1].tolist())), arm.queries, True)
            answer = None
            if isinstance(turn, Turn) and isinstance(turn.action, FinalAnswer):
                answer = turn.action.text
            right.append(is_gold(answer, item.fact.golds))
    return right


def block(vlm: VLM, tools: Tools, item: flags.Item) -> np.ndarray:
    """The ids of a turn that searches and of what it brings, the evidence among it."""
    world, fact = flags.load(), item.fact
    query = f"{fact.country} {BY_KEY[fact.attribute].words}"
    hits = tools.text.search(query, 5)
    source = flags.excerpt(
        world.snippet[fact.source], query, lambda text: len(plain_ids(vlm.tokenizer, text))
    )
    others = [hit for hit in hits if not world.is_useful(hit, fact.country, fact.golds)]
    shown = shuffle([source, *others[:2]], int(item.id.rpartition("/")[2]))
    turn = Turn(f"{naming(fact.country)} {I_LOOK}", None, "", TextSearch((query,)))
    said = plain_ids(vlm.tokenizer, render(turn))
    end = np.array([vlm.config.eos_token_ids[0]], np.int32)
    message = tool_message(TextResult((query,), (query,), shown))
    return np.concatenate([said, end, message_ids(vlm.tokenizer, vlm.config, message)])


def formed(vlm: VLM, tools: Tools, name: ArmName, items: Sequence[flags.Item]) -> float:
    """The share of sampled trajectories that keep to an arm's grammar."""
    good = 0
    for start in track(range(0, len(items), AT_ONCE), name):
        batch = [*map(asked, items[start : start + AT_ONCE])]
        rows = roll_out(vlm, batch, ARMS[name], tools, SamplingSettings(1.0), Limits()).rows
        good += sum(row.trajectory.finish == "answered" for row in rows)
    return good / len(items)


def main(folder: Path = BUNDLED, count: int = 300, out: Path | None = None) -> None:
    """Evaluates on validation questions, half about taught facts.

    Args:
        folder: of the policy.
        count: questions of each figure; the direct and the reading ones are half of them.
        out: where the figures go as JSON.
    """
    vlm = load_vlm(folder)
    world = flags.load()
    tools = flags_tools(world, vlm.tokenizer)
    items = list(flags.questions(world, "validation", 0, count))
    held_out = [item for item in items if item.kind == "held_out"]
    plain = direct(vlm, tools, items)
    taught = [right for item, (_, right) in zip(items, plain, strict=True) if item.kind == "seen"]
    others = [r for item, (_, r) in zip(items, plain, strict=True) if item.kind == "held_out"]
    figures = Figures(
        named=float(np.mean([named for named, _ in plain])),
        read=float(np.mean(reads(vlm, tools, held_out))),
        known=float(np.mean(taught)),
        untaught=float(np.mean(others)),
        formed={
            name: formed(vlm, tools, name, items) for name, arm in ARMS.items() if not arm.filtered
        },
    )
    print(json.dumps(encode(figures), indent=2))
    if out is not None:
        out.write_text(json.dumps(encode(figures), indent=2) + "\n")


if __name__ == "__main__":
    tyro.cli(main)
