"""The arms of the ablation: each a row of data, no branch in the code.

What the paper's summary leaves unsaid about an arm is a choice of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from svrl_jax.dr_grpo import Algorithm
from svrl_jax.prompts import PromptKind
from svrl_jax.rewards import Factor

ArmName = Literal[
    "direct",
    "rag",
    "mmsearch-r1",
    "mmsearch-r1++",
    "query-align",
    "llm-judge",
    "search-aware",
    "ttv",
    "self-verification",
    "full",
]

Judged = Literal["queries", "snippets", "answer"]
"""What the oracle is asked in training."""


@dataclass(frozen=True)
class Arm:
    """One row of the ablation.

    Attributes:
        prompt: the system prompt.
        queries: the most that a text search proposes.
        text_searches, image_searches: the most of a trajectory (MMSearch-R1).
        factors: of the reward, besides accuracy and format.
        algorithm: None for an arm that is not trained.
        oracle: what it is asked in training; "answer" replaces exact match by its grade.
        verify: evidence is part of a turn.
        policy: the arm whose policy runs; None for the base policy or the arm's own.
        forced_search: the first turn is a text search whose query the policy writes.
        filtered: an outside verifier removes snippets at test time.
        qalign_no_search: what query alignment pays without a search.
    """

    prompt: PromptKind
    queries: int = 1
    text_searches: int = 2
    image_searches: int = 1
    factors: tuple[Factor, ...] = ()
    algorithm: Algorithm | None = None
    oracle: frozenset[Judged] = frozenset()
    verify: bool = False
    policy: ArmName | None = None
    forced_search: bool = False
    filtered: bool = False
    qalign_no_search: float = 1.0

    @property
    def trained(self) -> bool:
        return self.algorithm is not None


K = 3
"""Queries that a search may propose; ours, the paper leaves k open."""

ARMS: Mapping[ArmName, Arm] = {
    "direct": Arm("answer", text_searches=0, image_searches=0),
    "rag": Arm("rag", text_searches=1, image_searches=0, forced_search=True),
    "mmsearch-r1": Arm("tags", factors=("uniform",), algorithm="grpo"),
    "mmsearch-r1++": Arm("react", factors=("uniform",), algorithm="grpo"),
    "query-align": Arm(
        "queries",
        K,
        factors=("count", "qalign"),
        algorithm="dr_grpo",
        oracle=frozenset({"queries"}),
        qalign_no_search=0.1,
    ),
    "llm-judge": Arm(
        "queries", K, factors=("count",), algorithm="dr_grpo", oracle=frozenset({"answer"})
    ),
    "search-aware": Arm("queries", K, factors=("aware", "count"), algorithm="dr_grpo"),
    "ttv": Arm("queries", K, policy="search-aware", filtered=True),
    "self-verification": Arm(
        "verify",
        K,
        factors=("salign",),
        algorithm="dr_grpo",
        oracle=frozenset({"snippets"}),
        verify=True,
    ),
    "full": Arm(
        "verify",
        K,
        factors=("aware", "count", "qalign", "salign"),
        algorithm="dr_grpo",
        oracle=frozenset({"queries", "snippets"}),
        verify=True,
    ),
}
"""Every arm by name."""
