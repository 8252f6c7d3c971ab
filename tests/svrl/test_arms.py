"""The table of arms holds together."""

from __future__ import annotations

import typing

import pytest

from svrl_jax import prompts
from svrl_jax.arms import ARMS, Arm, ArmName
from svrl_jax.grammar import Malformed, parse
from svrl_jax.rewards import FACTORS


def test_ten_arms_of_which_seven_are_trained() -> None:
    assert tuple(ARMS) == typing.get_args(ArmName)
    assert len(ARMS) == 10
    assert {name for name, arm in ARMS.items() if not arm.trained} == {"direct", "rag", "ttv"}


@pytest.mark.parametrize("arm", ARMS.values(), ids=ARMS)
def test_an_arm_asks_the_oracle_for_what_its_factors_read(arm: Arm) -> None:
    assert set(arm.factors) <= set(FACTORS)
    assert ("qalign" in arm.factors) == ("queries" in arm.oracle)
    assert ("salign" in arm.factors) == ("snippets" in arm.oracle)
    # marks are asked for exactly where they are paid for
    assert arm.verify == ("salign" in arm.factors) == (arm.prompt == "verify")
    assert not arm.factors or arm.trained
    assert arm.queries > 1 or "count" not in arm.factors


def test_grpo_is_the_baselines() -> None:
    grpo = {name for name, arm in ARMS.items() if arm.algorithm == "grpo"}
    assert grpo == {"mmsearch-r1", "mmsearch-r1++"}
    assert (
        ARMS["ttv"].policy == "search-aware" and ARMS["ttv"].prompt == ARMS["search-aware"].prompt
    )
    assert {name for name, arm in ARMS.items() if arm.qalign_no_search < 1} == {"query-align"}


@pytest.mark.parametrize("kind", typing.get_args(prompts.PromptKind))
def test_prompts_name_the_blocks_of_their_grammar(kind: prompts.PromptKind) -> None:
    text = prompts.system(kind, 3)
    assert "<reason>" in text and "<answer>" in text and "{" not in text
    assert ("<text_search>" in text) == (kind != "answer")
    assert ("<search><img></search>" in text) == (kind not in ("answer", "rag"))
    assert ("up to 3 different queries" in text) == (kind in ("queries", "verify"))
    assert ("<verify>" in text) == (kind == "verify")
    # a prompt is no turn
    assert isinstance(parse(text, 3, kind == "verify"), Malformed)
