"""What training is told about queries and snippets: by rule, by an endpoint, by three judges.

An oracle sees question, gold answers, queries and snippets. It is asked in training only; at test
time the policy marks snippets by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from svrl_jax.rewards import OracleLabels, pooled_queries
from svrl_jax.search.batch import search_all
from svrl_jax.search.protocol import Request, SearchError, TextTool
from svrl_jax.task import Task
from svrl_jax.trajectory import Snippet, Trajectory


class OracleError(Exception):
    """An oracle that failed for good; the trajectory is then unscorable."""


@dataclass(frozen=True)
class Evidence:
    """What an oracle is asked about a trajectory.

    Attributes:
        task: question and golds.
        queries: the different valid queries of all its searches, also those that were not run.
        found: what each of these queries brings, in the same order.
        shown: of each text search that brought snippets, what the policy read.
    """

    task: Task
    queries: tuple[str, ...]
    found: tuple[tuple[Snippet, ...], ...]
    shown: tuple[tuple[Snippet, ...], ...]


@runtime_checkable
class Oracle(Protocol):
    """Labels what trajectories asked and read."""

    def label(self, evidence: Sequence[Evidence]) -> tuple[OracleLabels | OracleError, ...]:
        """One result each, in order; a failure is a value, so that a batch goes on without it."""
        ...


def gather(
    tasks: Sequence[Task], trajectories: Sequence[Trajectory], tool: TextTool, top_k: int
) -> tuple[Evidence | OracleError, ...]:
    """What there is to label, with the queries run that the policy proposed but did not get run.

    Their results are never shown to the policy. With a cached tool each query costs once.

    Args:
        tasks: one per trajectory.
        trajectories: of the policy.
        tool: the policy's own.
        top_k: hits of a search.
    """
    proposed = [pooled_queries(trajectory) for trajectory in trajectories]
    results = iter(search_all(tool, [Request(q, top_k) for queries in proposed for q in queries]))
    gathered: list[Evidence | OracleError] = []
    for task, trajectory, queries in zip(tasks, trajectories, proposed, strict=True):
        own = [next(results) for _ in queries]
        failed = [result for result in own if isinstance(result, SearchError)]
        if failed:
            gathered.append(OracleError(f"{task.question.id}: {failed[0]}"))
            continue
        shown = tuple(search.snippets for search, _ in trajectory.marks)
        found = tuple(result for result in own if not isinstance(result, SearchError))
        gathered.append(Evidence(task, queries, found, shown))
    return tuple(gathered)


def label_all(
    oracle: Oracle, gathered: Sequence[Evidence | OracleError]
) -> tuple[OracleLabels | OracleError, ...]:
    """The oracle's labels of all that could be gathered; the failures as they are."""
    asked = [evidence for evidence in gathered if isinstance(evidence, Evidence)]
    labels = iter(oracle.label(asked) if asked else ())
    return tuple(
        next(labels) if isinstance(evidence, Evidence) else evidence for evidence in gathered
    )


SnippetJudge = Callable[[Sequence[tuple[Task, Snippet]]], Sequence[bool]]
"""Says of each snippet whether it is evidence for its task."""


@dataclass(frozen=True)
class SnippetOracle:
    """Labels by what snippets hold: a query is useful if it brings a useful snippet.

    Attributes:
        judge: of single snippets; each different one is asked about once a batch.
    """

    judge: SnippetJudge

    def label(self, evidence: Sequence[Evidence]) -> tuple[OracleLabels | OracleError, ...]:
        """Never fails, but for what the judge raises."""
        pairs: dict[tuple[str, Snippet], tuple[Task, Snippet]] = {}
        for one in evidence:
            for snippets in (*one.found, *one.shown):
                for snippet in snippets:
                    pairs[one.task.question.id, snippet] = one.task, snippet
        useful = dict(zip(pairs, self.judge([*pairs.values()]), strict=True)) if pairs else {}

        def marks(one: Evidence, snippets: Sequence[Snippet]) -> tuple[bool, ...]:
            return tuple(bool(useful[one.task.question.id, snippet]) for snippet in snippets)

        return tuple(
            OracleLabels(
                tuple(any(marks(one, snippets)) for snippets in one.found),
                tuple(marks(one, snippets) for snippets in one.shown),
            )
            for one in evidence
        )


def rule_oracle(is_useful: Callable[[Snippet, Task], bool]) -> SnippetOracle:
    """The offline default: a program says what is evidence.

    Args:
        is_useful: of a data set, such as `datasets.flags.World.is_useful`
            by the task's entity and golds.
    """
    return SnippetOracle(lambda pairs: [is_useful(snippet, task) for task, snippet in pairs])
