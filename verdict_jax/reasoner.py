"""A VLM as the reasoner of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np
from jaxtyping import Int32, Key

from verdict_jax import prompts
from verdict_jax.asking import question_rows
from verdict_jax.protocols import Candidate, Finish, Question, Setting
from verdict_jax.vlm import prefixes
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.prefixes import Prefixes
from verdict_jax.vlm.sampling import DELIMITER, STOPPED, Completion, SamplingSettings
from verdict_jax.vlm.tokenizer import plain_ids

_FINISHES: dict[int, Finish] = {DELIMITER: "step", STOPPED: "eos"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ReasonerState:
    """Where a batch of chains stands.

    Attributes:
        prefixes: prompt and accepted steps of each row.
        live: rows that go on; one is over once a commit left it out.
    """

    prefixes: Prefixes
    live: tuple[bool, ...] = field(metadata={"static": True})


@dataclass(frozen=True)
class VLMReasoner:
    """Samples next steps from a VLM, behind the prompt of `prompts.reasoner_system`.

    Attributes:
        vlm: the model.
        sampling: how tokens are drawn.
    """

    vlm: VLM
    sampling: SamplingSettings = SamplingSettings()

    @property
    def model_id(self) -> str:
        return self.vlm.name

    @property
    def settings(self) -> Mapping[str, Setting]:
        return {
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "max_tokens": self.sampling.max_tokens,
            "dtype": self.vlm.dtype,
            "system": prompts.reasoner_system(),
            "system_choices": prompts.reasoner_system(choices=("",)),
        }

    def start(self, questions: Sequence[Question]) -> ReasonerState:
        """Prefills the prompts of a batch in one pass.

        Raises:
            QuestionErrors: rows with a picture that cannot be read or processed, more choices than
                letters, or a prompt longer than the model takes.
        """
        rows, encoded = question_rows(
            self.vlm, questions, lambda question: prompts.reasoner_system(question.choices)
        )
        read = prefixes.read_prompts(self.vlm, rows, bucket(len(rows)), encoded.features)
        return ReasonerState(read, (True,) * len(rows))

    def propose(
        self, state: ReasonerState, keys: Key[jax.Array, "batch n"], final: bool
    ) -> tuple[tuple[Candidate, ...], ...]:
        """n sampled continuations of each row; rows that are over get blank ones."""
        completion = prefixes.sample(
            self.vlm, state.prefixes, keys, self.sampling, state.live, not final
        )
        batch, n = keys.shape
        return tuple(
            tuple(self._candidate(completion, row * n + way) for way in range(n))
            for row in range(batch)
        )

    def commit(self, state: ReasonerState, steps: Sequence[Candidate | None]) -> ReasonerState:
        """Appends the ids of each step as they were sampled; a step without ids is encoded."""
        ids = [np.empty(0, np.int32) if step is None else self._ids(step) for step in steps]
        live = tuple(
            was and step is not None and step.finish != "eos"
            for was, step in zip(state.live, steps, strict=True)
        )
        return ReasonerState(prefixes.append(self.vlm, state.prefixes, ids), live)

    def take(self, state: ReasonerState, rows: Sequence[int]) -> ReasonerState:
        """The state of these rows, in this order."""
        taken = prefixes.take(state.prefixes, rows, bucket(len(rows)))
        return ReasonerState(taken, tuple(state.live[row] for row in rows))

    def _candidate(self, completion: Completion, index: int) -> Candidate:
        mask = np.asarray(completion.mask[index])
        ids = tuple(np.asarray(completion.tokens[index])[mask].tolist())
        finish = _FINISHES.get(int(completion.finish[index]), "length" if ids else "eos")
        ended = finish == "eos" and ids
        text = str(self.vlm.tokenizer.decode(list(ids[:-1] if ended else ids)))
        if finish == "step":
            # The delimiter may share its token with characters on both sides.
            text = text[: text.index(prompts.STEP_DELIMITER)]
        return Candidate(
            text=text.removesuffix(prompts.STEP_DELIMITER),
            token_ids=ids,
            logprob=float(np.sum(completion.model_logprobs[index], dtype=np.float64)),
            sample_logprob=float(np.sum(completion.logprobs[index], dtype=np.float64)),
            finish=finish,
        )

    def _ids(self, step: Candidate) -> Int32[np.ndarray, "time"]:
        if step.token_ids:
            return np.array(step.token_ids, np.int32)
        end = prompts.STEP_DELIMITER if step.finish == "step" else ""
        return plain_ids(self.vlm.tokenizer, step.text + end)


def base_reasoner(reasoner: VLMReasoner) -> VLMReasoner:
    """The same model decoding greedily: with the rule `first` and n = 1, the paper's Base."""
    return replace(reasoner, sampling=replace(reasoner.sampling, temperature=0.0))
