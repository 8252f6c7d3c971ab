"""What a policy reads after a search."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32
from transformers import PreTrainedTokenizerFast

from svrl_jax import prompts
from svrl_jax.grammar import defuse
from svrl_jax.trajectory import ImageResult, TextResult
from verdict_jax.vlm.config import Config
from verdict_jax.vlm.prompting import reply_frame
from verdict_jax.vlm.tokenizer import plain_ids


def tool_message(result: TextResult | ImageResult) -> str:
    """Numbered lines in a block that nothing inside can close."""
    if result.error is not None:
        return prompts.INFORMATION.format(defuse(result.error))
    if isinstance(result, TextResult):
        pairs = [(snippet.title, snippet.text) for snippet in result.snippets]
    else:
        pairs = [("", title) for title in result.titles]
    lines = [
        defuse(prompts.snippet_line(number, title, text))
        for number, (title, text) in enumerate(pairs, start=1)
    ]
    return prompts.INFORMATION.format("\n".join(lines) or prompts.NO_HITS)


def message_ids(
    tokenizer: PreTrainedTokenizerFast, config: Config, message: str
) -> Int32[np.ndarray, "time"]:
    """A message as the turn that follows the policy's, up to where the policy goes on.

    Raises:
        TokenizerError: as `verdict_jax.vlm.prompting.render_prompt`.
    """
    around = reply_frame(tokenizer, config)
    parts = around.opening, plain_ids(tokenizer, message), around.closing
    return np.concatenate(parts).astype(np.int32)
