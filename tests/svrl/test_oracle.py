"""Who says what is useful: by rule, by an endpoint on loopback, by three judges; then rewards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny_vlm

from svrl_jax.arms import ARMS
from svrl_jax.behaviour import Counts, behaviour
from svrl_jax.consensus import Consensus
from svrl_jax.endpoint import KEY_VARIABLE, ChatEndpoint, EndpointGrader, EndpointOracle
from svrl_jax.grading import containment, exact_match
from svrl_jax.grammar import FinalAnswer, ImageSearch, Malformed, TextSearch, Turn
from svrl_jax.oracle import Evidence, OracleError, SnippetOracle, gather, label_all, rule_oracle
from svrl_jax.rewards import OracleLabels, RewardSettings
from svrl_jax.scoring import Judges, Outcome, score
from svrl_jax.search.http_client import RetryPolicy
from svrl_jax.search.protocol import SearchError
from svrl_jax.task import Task
from svrl_jax.trajectory import Exchange, ImageResult, Snippet, TextResult, Trajectory
from tests.svrl.search.local_server import Answer, LocalServer, as_json, serve
from verdict_jax.judges import VLMPanel
from verdict_jax.protocols import Question

GOLD = Snippet("g", "Norway | Capital", "Oslo, on the fjord", "s")
OTHER = Snippet("o", "Chad | Capital", "N'Djamena", "s")
THIRD = Snippet("t", "Norway | Area", "385,207 sq km", "s")

TASK = Task(Question("q", "What is its capital?", answer="Oslo"), ("Oslo",), "Norway")


def mentions_gold(snippet: Snippet, task: Task) -> bool:
    return snippet.title.startswith(str(task.entity)) and task.golds[0] in snippet.text


RULE = rule_oracle(mentions_gold)


@dataclass(frozen=True)
class ByWord:
    """Finds the gold for queries that hold "capital", nothing of use else, fails at "down"."""

    name, version = "by word", "1"

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        if "down" in query:
            raise SearchError("by word", "timeout", "no answer")
        return (GOLD, OTHER)[:top_k] if "capital" in query else (OTHER, THIRD)[:top_k]


def searched(
    queries: Sequence[str],
    snippets: tuple[Snippet, ...],
    marks: tuple[bool, ...] | None,
    answer: str = "Oslo",
    ranks: tuple[int, ...] | None = None,
) -> Trajectory:
    ranks = tuple(range(len(snippets))) if ranks is None else ranks
    result = TextResult(tuple(queries), tuple(queries[:1]), snippets, ranks=ranks)
    return Trajectory(
        "q",
        (
            Exchange(Turn("r", None, "", TextSearch(tuple(queries))), result),
            Exchange(Turn("r", marks, "", FinalAnswer(answer))),
        ),
        "answered",
    )


DIRECT = Trajectory("q", (Exchange(Turn("r", None, "", FinalAnswer("Oslo"))),), "answered")


# ---------------------------------------------------------------------------------------- by rule


def test_queries_that_were_not_run_are_run_for_the_oracle() -> None:
    done = searched(["capital of Norway", "area of Norway"], (OTHER, GOLD), (False, True))
    (evidence,) = gather([TASK], [done], ByWord(), 2)
    assert evidence == Evidence(
        TASK, ("capital of Norway", "area of Norway"), ((GOLD, OTHER), (OTHER, THIRD)),
        ((OTHER, GOLD),),
    )  # fmt: skip
    (labels,) = label_all(RULE, [evidence])
    assert labels == OracleLabels((True, False), ((False, True),))


def test_without_a_search_there_is_nothing_to_label() -> None:
    (evidence,) = gather([TASK], [DIRECT], ByWord(), 2)
    assert label_all(RULE, [evidence]) == (OracleLabels((), ()),)


def test_a_query_that_fails_makes_its_trajectory_alone_unscorable() -> None:
    down = searched(["down", "capital"], (GOLD,), (True,))
    fine = searched(["capital"], (GOLD,), (True,))
    first, second = label_all(RULE, gather([TASK, TASK], [down, fine], ByWord(), 2))
    assert isinstance(first, OracleError) and "q: by word: timeout" in str(first)
    assert second == OracleLabels((True,), ((True,),))


def test_a_snippet_is_judged_once_a_batch() -> None:
    asked: list[int] = []

    def judge(pairs: Sequence[tuple[Task, Snippet]]) -> list[bool]:
        asked.append(len(pairs))
        return [snippet == GOLD for _, snippet in pairs]

    done = searched(["capital", "the capital"], (GOLD, OTHER), (True, False))
    evidence = gather([TASK, TASK], [done, done], ByWord(), 2)
    labels = label_all(SnippetOracle(judge), evidence)
    assert asked == [2] and labels[0] == labels[1] == OracleLabels((True, True), ((True, False),))


# ------------------------------------------------------------------------------------ by endpoint


def reply(text: str) -> Answer:
    return as_json({"choices": [{"message": {"role": "assistant", "content": text}}]})


def endpoint(server: LocalServer, attempts: int = 2) -> ChatEndpoint:
    policy = RetryPolicy(attempts=attempts, timeout_s=2.0)
    return ChatEndpoint(f"{server.url}/v1", "judge", policy, sleep=lambda _: None)


EVIDENCE = Evidence(TASK, ("capital", "area"), ((GOLD,), (THIRD,)), ((OTHER, GOLD),))


def test_an_endpoint_is_asked_in_json_and_read_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k3y")
    with serve(reply('```json\n{"queries": [1, 0], "snippets": [0, 1]}\n```')) as server:
        (labels,) = EndpointOracle(endpoint(server)).label([EVIDENCE])
    assert labels == OracleLabels((True, False), ((False, True),))
    (seen,) = server.seen
    assert seen.path == "/v1/chat/completions" and seen.headers["Authorization"] == "Bearer k3y"
    body = json.loads(seen.body)
    assert (body["model"], body["temperature"]) == ("judge", 0)
    asked = json.loads(body["messages"][1]["content"])
    assert asked == {
        "question": "What is its capital?",
        "answers": ["Oslo"],
        "queries": ["capital", "area"],
        "snippets": ["Chad | Capital: N'Djamena", "Norway | Capital: Oslo, on the fjord"],
    }


def test_no_key_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with serve(reply('{"correct": 1}')) as server:
        assert EndpointGrader(endpoint(server))([(TASK, "Oslo")]) == (1.0,)
    assert "Authorization" not in server.seen[0].headers


@pytest.mark.parametrize(
    "text",
    [
        "no idea",
        '{"queries": [1], "snippets": [0, 1]}',
        '{"queries": [1, 0], "snippets": [0, 2]}',
        '{"queries": [1, 0]}',
        '{"queries": "1,0", "snippets": [0, 1]}',
        '{"queries": [1, 0], "snippets": [0, 1',
        "[1, 0]",
    ],
)
def test_a_reply_of_another_shape_is_asked_for_again_then_given_up(text: str) -> None:
    with serve(reply(text)) as server:
        (failed,) = EndpointOracle(endpoint(server)).label([EVIDENCE])
    assert isinstance(failed, OracleError) and "q: endpoint judge: malformed" in str(failed)
    assert len(server.seen) == 2


def test_a_second_try_may_succeed() -> None:
    good = reply('{"queries": [0, 0], "snippets": [1, 1]}')
    with serve(Answer(503), good) as server:
        (labels,) = EndpointOracle(endpoint(server)).label([EVIDENCE])
    assert labels == OracleLabels((False, False), ((True, True),))


def test_one_failure_does_not_stop_the_batch() -> None:
    with serve(reply('{"correct": 1}'), Answer(400)) as server:
        grades = EndpointGrader(endpoint(server, 1))([(TASK, "Oslo"), (TASK, None), (TASK, "x")])
    assert grades[1] == 0.0 and len(server.seen) == 2
    assert sorted(type(grade).__name__ for grade in grades) == ["OracleError", "float", "float"]


def test_graders_offline() -> None:
    answers = [(TASK, "oslo"), (TASK, "It is Oslo."), (TASK, None), (TASK, "Bergen")]
    assert exact_match(answers) == [1, 0, 0, 0]
    assert containment(answers) == [1, 1, 0, 0]


# --------------------------------------------------------------------------------------- consensus


def test_the_consensus_accepts_what_the_settled_judges_accept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With scores written down: high and alike is accepted, torn or low is not."""
    seen: list[tuple[str, ...]] = []

    def start(panel: VLMPanel, questions: Sequence[Question]) -> list[Question]:
        seen.append(tuple(question.text for question in questions))
        return list(questions)

    def scores(panel: VLMPanel, state: object, candidates: Sequence[Sequence[object]]) -> object:
        import numpy as np

        table = {"Oslo": (0.9, 0.9, 0.9), "N'Djamena": (0.0, 1.0, 1.0), "385": (0.2, 0.2, 0.2)}
        values = np.zeros((len(candidates), 3, 3))
        mask = np.zeros_like(values, bool)
        for row, proposed in enumerate(candidates):
            for place, candidate in enumerate(proposed):
                text = candidate.text  # pyright: ignore[reportAttributeAccessIssue]
                (known,) = [v for key, v in table.items() if key in text]
                values[row, place], mask[row, place] = known, True
        return values, mask

    monkeypatch.setattr(VLMPanel, "start", start)
    monkeypatch.setattr(VLMPanel, "score", scores)
    other = Task(Question("p", "Another?", answer="x"), ("x",))
    pairs = [(TASK, GOLD), (other, GOLD), (TASK, OTHER), (TASK, THIRD)]
    told = Consensus.of(tiny_vlm.tiny_vlm(), gold_shown=True)
    assert told(pairs) == [True, True, False, False]
    untold = replace(told, gold_shown=False, at_once=1)
    assert untold(pairs) == [True, True, False, False]
    assert seen[0] == ("What is its capital? The answer is Oslo.", "Another? The answer is x.")
    assert seen[1:] == [("What is its capital?",), ("Another?",)]


def test_the_consensus_runs_on_a_model() -> None:
    asked = replace(TASK, question=replace(TASK.question, images=(tiny_vlm.picture(0, (32, 32)),)))
    verdicts = Consensus.of(tiny_vlm.tiny_vlm(), True)([(asked, GOLD), (asked, OTHER)])
    assert len(verdicts) == 2 and all(isinstance(verdict, bool) for verdict in verdicts)


# ----------------------------------------------------------------------------------------- rewards


JUDGES = Judges(RULE, containment, ByWord(), 2)
SETTINGS = RewardSettings()


def outcome(trajectory: Trajectory, arm: str = "full", free: bool = False) -> Outcome:
    tags = {"q": free}
    (found,) = score(ARMS[arm], [TASK], [trajectory], tags, JUDGES, SETTINGS)  # pyright: ignore[reportArgumentType]
    return found


def test_rewards_of_the_full_arm_by_hand() -> None:
    done = searched(["capital", "its capital", "area"], (GOLD, OTHER), (True, True))
    found = outcome(done, free=True)
    assert found.reward is not None and found.labels is not None
    assert dict(found.reward.factors) == {
        "aware": 0.1, "count": 1.0, "qalign": pytest.approx(2 / 3), "salign": 0.5,
    }  # fmt: skip
    assert found.reward.total == pytest.approx(0.9 * 0.1 * (2 / 3) * 0.5 + 0.1)
    assert outcome(DIRECT).reward == outcome(DIRECT, free=True).reward
    assert outcome(DIRECT).reward.total == pytest.approx(1.0)  # pyright: ignore[reportOptionalMemberAccess]


def test_the_arms_numbers_are_used() -> None:
    """k of a one-query arm is 1; query-align pays little without a search; the judge's grade."""
    one = searched(["capital"], (GOLD,), None)
    assert outcome(one, "mmsearch-r1++").reward.total == pytest.approx(0.9 * 0.9 + 0.1)  # pyright: ignore[reportOptionalMemberAccess]
    assert outcome(DIRECT, "query-align").reward.total == pytest.approx(0.9 * 0.1 + 0.1)  # pyright: ignore[reportOptionalMemberAccess]
    wordy = searched(["capital"], (GOLD,), None, "It is Oslo")
    assert outcome(wordy, "llm-judge").reward.accuracy == 1  # pyright: ignore[reportOptionalMemberAccess]
    assert outcome(wordy, "search-aware").reward.accuracy == 0  # pyright: ignore[reportOptionalMemberAccess]


def test_an_oracle_that_fails_leaves_no_reward() -> None:
    found = outcome(searched(["down"], (GOLD,), (True,)))
    assert found.reward is None and found.labels is None and "timeout" in str(found.error)


# --------------------------------------------------------------------------------------- behaviour


def test_figures_of_behaviour_by_hand() -> None:
    arm = ARMS["full"]
    right = searched(["capital"], (OTHER, GOLD), (False, True), ranks=(1, 0))
    misled = searched(["capital"], (GOLD, OTHER), (False, True), "N'Djamena", ranks=(1, 0))
    unmarked = searched(["area"], (OTHER, THIRD), None, "Bergen")
    looked = Trajectory(
        "q",
        (Exchange(Turn("r", None, "", ImageSearch()), ImageResult(("x",))),
         Exchange(Malformed("no reason", None))),
        "malformed",
    )  # fmt: skip
    outcomes = [
        outcome(right, free=True), outcome(misled), outcome(unmarked), outcome(looked),
        outcome(DIRECT, free=True), outcome(DIRECT), outcome(searched(["down"], (GOLD,), (True,))),
    ]  # fmt: skip
    figures = behaviour(outcomes, arm)
    assert figures.items == 7 and figures.unscorable == 1
    assert figures.accuracy == pytest.approx(4 / 7)
    assert figures.searched == pytest.approx(5 / 7) and figures.calls == pytest.approx(5 / 21)
    assert figures.needless == 1 / 2 and figures.missed == 1 / 5
    assert figures.irrelevant == 4 / 6
    # wrong with labels: misled, unmarked, looked; one of them had read the gold
    assert figures.misled == pytest.approx(1 / 3)
    assert figures.verify == Counts(1, 2, 2)
    assert (figures.verify.precision, figures.verify.recall) == (0.5, 0.5)
    assert figures.always_1 == Counts(2, 6, 2) and figures.engine_first == Counts(1, 3, 2)
    assert figures.formed == pytest.approx(6 / 7)


def test_nothing_to_count_is_none() -> None:
    figures = behaviour([outcome(DIRECT, free=True)], ARMS["direct"])
    assert figures.calls is None and figures.missed is None and figures.irrelevant is None
    assert figures.verify.precision is None and figures.verify.recall is None
    with pytest.raises(ValueError, match="no trajectories"):
        behaviour([], ARMS["full"])


def test_a_task_has_a_gold() -> None:
    with pytest.raises(ValueError, match="q: no gold"):
        Task(Question("q", "?"), ("", " "))


def test_no_prompt_is_outside_its_module() -> None:
    """Prompts live in prompts.py only."""
    folder = Path(__file__).parents[2] / "svrl_jax"
    for path in folder.glob("*.py"):
        if path.name != "prompts.py":
            assert "You label" not in path.read_text() and "You grade" not in path.read_text()
