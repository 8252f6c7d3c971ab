"""Writes the tokenizer of the bundled policy in the published file format.

    python scripts/build_flags_tokenizer.py

The corpus is what the policy reads and writes: every arm's prompt, questions, snippets, turns. A
model rests on its tokenizer: rebuild both or neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tyro
from build_bundled_tokenizer import VOCABULARY, train, write

from svrl_jax import prompts
from svrl_jax.arms import ARMS
from svrl_jax.datasets import flags
from svrl_jax.datasets.flags import demonstrations
from svrl_jax.datasets.flags.attributes import BY_KEY
from svrl_jax.grammar import FinalAnswer, ImageSearch, TextSearch, Turn, render
from svrl_jax.messages import tool_message
from svrl_jax.trajectory import TextResult

POLICY = Path(__file__).parent.parent / "svrl_jax" / "bundled" / "policy"


def texts() -> Iterator[str]:
    """The corpus; what stands in every trajectory comes often."""
    world = flags.load()
    for snippet in world.snippets:
        yield prompts.snippet_text(snippet.title, snippet.text)
    for arm in ARMS.values():
        yield from [prompts.system(arm.prompt, arm.queries)] * 50
    for role in ("system", "user", "assistant"):
        yield from [f"{role}\n"] * 50
    for fact in world.facts:
        yield from flags.questions_about(fact.attribute, "training")
        seen = demonstrations.naming(fact.country)
        words = BY_KEY[fact.attribute].words
        for thought in (demonstrations.I_KNOW, demonstrations.I_GUESS, demonstrations.I_LOOK):
            yield render(Turn(f"{seen} {thought}", None, "", FinalAnswer(fact.golds[0])))
        queries = tuple(f.format(country=fact.country, words=words) for f in demonstrations.FORMS)
        yield render(Turn(seen, None, "", TextSearch(queries[:3])))
        yield render(Turn(demonstrations.I_SEE, None, "", ImageSearch()))
        source = world.snippet[fact.source]
        yield tool_message(TextResult(queries, queries[:1], (source, source, source)))
        wanted = demonstrations.wanting(fact.country, BY_KEY[fact.attribute])
        answer = FinalAnswer(demonstrations.UNKNOWN)
        yield render(Turn(wanted, (True, False), demonstrations.NONE, answer))


def main(folder: Path = POLICY) -> None:
    """Trains on the corpus; writes the two tokenizer files.

    Args:
        folder: where they go.
    """
    tokenizer = train(texts(), VOCABULARY)
    write(tokenizer, folder)
    print(f"{tokenizer.get_vocab_size()} entries -> {folder}")


if __name__ == "__main__":
    tyro.cli(main)
