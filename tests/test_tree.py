"""The stored tree: nodes found again, scores put in once, JSON both ways."""

from __future__ import annotations

import dataclasses
import json
import math

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verdict_jax.json_records import MalformedRecord, decode, json_schema
from verdict_jax.protocols import Candidate
from verdict_jax.tree import SCHEMA, Node, PanelIdentity, PanelScores, Tree, columns

PANEL = PanelIdentity("judge", ("visual", "logical"), {"readout": "digits"})
OTHER = PanelIdentity("judge", ("visual", "logical"), {"readout": "yes_no"})
EMPTY = Tree(SCHEMA, "item", "?", ("a", "b"), ("x.png",), "model", {"temperature": 0.8}, 0, 3)
NODE = Node((), False, (Candidate("a"), Candidate("b"), Candidate("a")))
YES = np.ones((3, 2), bool)

texts = st.text(max_size=12)
numbers = st.floats(allow_nan=False)
setting = texts | st.booleans() | st.integers(-5, 5) | numbers
candidates = st.builds(
    Candidate,
    texts,
    st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    numbers,
    numbers,
    st.sampled_from(["step", "eos", "length"]),
)
panels = st.builds(
    PanelIdentity,
    texts,
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.dictionaries(texts, setting, max_size=3),
)


@st.composite
def trees(draw) -> Tree:
    several = st.lists(texts, max_size=2).map(tuple)
    tree = Tree(
        SCHEMA, draw(texts), draw(texts), draw(several), draw(several), draw(texts),
        draw(st.dictionaries(texts, setting, max_size=2)),
        draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 3)),
    )  # fmt: skip
    for _ in range(draw(st.integers(0, 3))):
        node = Node(
            tuple(draw(st.lists(st.integers(0, tree.n - 1), max_size=2))),
            draw(st.booleans()),
            tuple(draw(candidates) for _ in range(tree.n)),
        )
        tree = tree.with_node(node)
        if draw(st.booleans()):
            panel = draw(panels)
            shape = (tree.n, len(panel.judges))
            score = st.floats(0, 1)
            scores = np.array([[draw(score) for _ in range(shape[1])] for _ in range(shape[0])])
            mask = np.array(
                [[draw(st.booleans()) for _ in range(shape[1])] for _ in range(shape[0])]
            )
            tree = tree.with_scores(node, panel, scores, mask)
    return tree


# beartype picks the items it checks at random, inside strategies that build our classes.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(max_examples=30, deadline=None, derandomize=True)
@given(trees())
def test_json_both_ways(tree):
    text = tree.to_json()
    assert "\n" not in text
    assert Tree.from_json(text) == tree
    jsonschema.validate(json.loads(text), json_schema(Tree))


def test_an_infinite_logprob_survives_json():
    candidate = Candidate("a", logprob=-math.inf, sample_logprob=math.nan)
    tree = dataclasses.replace(EMPTY, n=1).with_node(Node((), False, (candidate,)))
    text = tree.to_json()
    jsonschema.validate(json.loads(text), json_schema(Tree))
    (read,) = Tree.from_json(text).nodes[0].candidates
    assert read.logprob == -math.inf and math.isnan(read.sample_logprob)


def test_settings_keep_their_types():
    tree = dataclasses.replace(EMPTY, settings={"a": 1, "b": 1.0, "c": True, "d": "1"})
    read = Tree.from_json(tree.to_json())
    assert [type(value) for value in read.settings.values()] == [int, float, bool, str]


def test_a_whole_number_stays_whole_where_a_float_may_stand_too():
    kind = dataclasses.make_dataclass("Either", [("x", float | int)], frozen=True)
    assert type(decode(kind, {"x": 1}).x) is int
    assert type(decode(kind, {"x": 1.0}).x) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.pop("seed"), r"\$: missing seed"),
        (lambda v: v.update(sede=1), r"\$: unknown sede"),
        (lambda v: v.update(seed=True), r"\$\.seed: expected integer, got bool"),
        (lambda v: v.update(seed=1.5), r"\$\.seed: expected integer, got float"),
        (lambda v: v.update(settings=[]), r"\$\.settings: expected an object"),
        (lambda v: v.update(settings={"a": None}), r"\$\.settings\.a"),
        (lambda v: v.update(nodes={}), r"\$\.nodes: expected an array"),
        (lambda v: v["nodes"].append(3), r"\$\.nodes\[1\]: expected an object"),
        (lambda v: v["nodes"][0].update(path=["0"]), r"\$\.nodes\[0\]\.path\[0\]"),
        (
            lambda v: v["nodes"][0]["candidates"][0].update(finish="stop"),
            r"\$\.nodes\[0\]\.candidates\[0\]\.finish: expected one of",
        ),
        (
            lambda v: v["nodes"][0]["candidates"][0].update(logprob="x"),
            r"candidates\[0\]\.logprob: expected number, got str",
        ),
        *(
            (
                lambda v, name=name: v["nodes"][0]["candidates"][0].update(
                    logprob={"nonfinite": name}
                ),
                r"candidates\[0\]\.logprob\.nonfinite: expected one of",
            )
            for name in ("abc", None, "1.5", 1.5, ["nan"])
        ),
        (lambda v: v.update(schema="verdict-tree/0"), r"\$\.schema: expected 'verdict-tree/1'"),
        (lambda v: v.pop("schema"), r"\$\.schema: expected 'verdict-tree/1', got None"),
    ],
)
def test_malformed_json_names_the_place(change, message):
    value = json.loads(EMPTY.with_node(NODE).to_json())
    change(value)
    with pytest.raises(MalformedRecord, match=message):
        Tree.from_json(json.dumps(value))


def test_no_json_at_all():
    with pytest.raises(MalformedRecord, match="not JSON"):
        Tree.from_json("{")
    with pytest.raises(MalformedRecord, match="expected an object"):
        Tree.from_json("[]")


def test_nodes_are_found_by_prefix_and_finality():
    deeper = Node((2,), False, NODE.candidates)
    last = Node((), True, (Candidate("z"),) * 3)
    tree = EMPTY.with_node(deeper).with_node(last).with_node(NODE)
    assert tree.find((), False) == NODE
    assert tree.find((), True) == last
    assert tree.find((2,), False) == deeper
    assert tree.find((2,), True) is None
    assert tree.find((1,), False) is None
    # The order of visits leaves no mark.
    assert tree == EMPTY.with_node(NODE).with_node(last).with_node(deeper)
    # A node of the same prefix is replaced, not doubled.
    again = Node((), False, (Candidate("c"),) * 3)
    assert tree.with_node(again).find((), False) == again
    assert len(tree.with_node(again).nodes) == 3
    assert EMPTY.nodes == ()


def test_a_node_of_another_width_is_refused():
    with pytest.raises(ValueError, match="item: a node of 2 candidates in a tree of 3"):
        EMPTY.with_node(Node((), False, NODE.candidates[:2]))


def test_scores_are_shared_by_identical_texts_and_kept_from_blank_ones():
    node = Node((), False, (Candidate("a"), Candidate("  "), Candidate("a")))
    scores = np.array([[0.25, 0.5], [0.75, 0.75], [1.0, 1.0]])
    mask = np.array([[True, False], [True, True], [True, True]])
    tree = EMPTY.with_node(node).with_scores(node, PANEL, scores, mask)
    stored = tree.find((), False)
    assert stored is not None
    assert tree.scores(stored, PANEL) == ((0.25, None), (None, None), (0.25, None))
    assert node.firsts == (0, None, 0)
    assert node.failures == (None, "empty candidate", None)


def test_each_panel_has_scores_of_its_own():
    tree = EMPTY.with_node(NODE).with_scores(NODE, PANEL, np.full((3, 2), 0.5), YES)
    node = tree.nodes[0]
    assert tree.scores(node, OTHER) is None
    tree = tree.with_scores(node, OTHER, np.full((3, 2), 0.25), YES)
    node = tree.nodes[0]
    assert tree.panels == (PANEL, OTHER)
    assert tree.scores(node, PANEL) == ((0.5, 0.5),) * 3
    assert tree.scores(node, OTHER) == ((0.25, 0.25),) * 3
    # Judged again: replaced.
    tree = tree.with_scores(node, PANEL, np.full((3, 2), 0.75), YES)
    assert len(tree.nodes[0].scores) == 2
    assert tree.scores(tree.nodes[0], PANEL) == ((0.75, 0.75),) * 3


@pytest.mark.parametrize("value", [-1e-6, 1.0001, math.nan])
def test_a_score_outside_the_range_names_judge_and_candidate(value):
    scores = np.full((3, 2), 0.5)
    scores[1, 1] = value
    with pytest.raises(ValueError, match="item: judge logical of judge gave .* to candidate 1"):
        EMPTY.with_node(NODE).with_scores(NODE, PANEL, scores, YES)
    # Where it is masked, it is nothing; nor does a repeat's own row count.
    mask = YES.copy()
    mask[1, 1] = False
    EMPTY.with_node(NODE).with_scores(NODE, PANEL, scores, mask)
    EMPTY.with_node(NODE).with_scores(NODE, PANEL, scores[[0, 0, 1]], YES)


def test_columns_stand_side_by_side():
    scores, mask = columns([((0.1, None), (0.2, 0.3)), ((0.4,), (None,))], 2)
    assert scores.tolist() == [[0.1, 0.0, 0.4], [0.2, 0.3, 0.0]]
    assert mask.tolist() == [[True, False, True], [True, True, False]]
    scores, mask = columns([((0.1,), (0.2,), (0.3,))], 2)
    assert scores.tolist() == [[0.1], [0.2]]
    scores, mask = columns([], 3)
    assert scores.shape == mask.shape == (3, 0)


def test_scores_keep_every_bit_of_float32():
    value = np.float32(0.1)
    tree = EMPTY.with_node(NODE).with_scores(NODE, PANEL, np.full((3, 2), value, np.float32), YES)
    read = Tree.from_json(tree.to_json())
    stored = read.scores(read.nodes[0], PANEL)
    assert stored is not None and np.float32(stored[0][0]) == value
    assert read.nodes[0].scores == (PanelScores(0, stored),)
