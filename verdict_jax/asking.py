"""Questions as rows of a chat prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verdict_jax.prompts import question_text
from verdict_jax.protocols import Question, QuestionErrors
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.pictures import EncodedPictures
from verdict_jax.vlm.prompting import frame, prompt_row
from verdict_jax.vlm.rows import TokenRow
from verdict_jax.vlm.tokenizer import plain_ids


def question_rows(
    vlm: VLM,
    questions: Sequence[Question],
    system: Callable[[Question], str],
    beginning: str = "",
) -> tuple[list[TokenRow], EncodedPictures]:
    """The prompts of a batch, with the encoded pictures that their feature ids point into.

    Args:
        vlm: the model that is asked.
        questions: of the batch.
        system: the system prompt of each.
        beginning: how the reply begins, where that is not the model's own.

    Raises:
        QuestionErrors: rows with a picture that cannot be read or processed, more choices than
            letters, or a prompt longer than the model takes.
    """
    encoded = vlm.encode([question.images for question in questions])
    reasons = dict(encoded.reasons)
    rows: list[TokenRow] = []
    for index, (question, pictures) in enumerate(zip(questions, encoded.rows, strict=True)):
        if index in reasons:
            continue
        around = frame(vlm.tokenizer, vlm.config, system(question), len(pictures))
        try:
            asked = plain_ids(vlm.tokenizer, question_text(question.text, question.choices))
            begun = plain_ids(vlm.tokenizer, beginning)
            parts = around.opening, asked, around.closing, begun
            rows.append(prompt_row(vlm.config, parts, pictures))
        except ValueError as error:
            reasons[index] = str(error)
    if reasons:
        raise QuestionErrors(reasons)
    return rows, encoded
