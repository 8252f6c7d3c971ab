"""Checkpoints in both directions: nothing is left unread, unassigned or unnamed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration

from verdict_jax.vlm.config import load_config
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.weights import WeightsError, load_params, parameter_shapes, save_checkpoint
from vlm.builders import Pair, compare, mixed_prompts, reference_logits

Tensors = dict[str, torch.Tensor]

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"


def assert_equal(one: Params, other: Params) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def stored(pair: Pair) -> Tensors:
    return load_file(pair.folder / "model.safetensors")


def folder_of(tmp_path: Path, pair: Pair, tensors: Tensors) -> Path:
    shutil.copy(pair.folder / "config.json", tmp_path)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def shards(folder: Path, parts: list[Tensors]) -> Path:
    """A sharded checkpoint; of a tensor stored twice the index names the later shard."""
    weight_map = {}
    for number, part in enumerate(parts):
        name = f"model-{number}.safetensors"
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("name", ["untied", "tied"])
def test_every_leaf_is_assigned(name: str, request: pytest.FixtureRequest) -> None:
    pair: Pair = request.getfixturevalue(name)
    shapes = parameter_shapes(pair.config)
    assert jax.tree.structure(shapes) == jax.tree.structure(pair.params)
    for shape, leaf in zip(jax.tree.leaves(shapes), jax.tree.leaves(pair.params), strict=True):
        assert shape.shape == leaf.shape
        assert leaf.dtype == jnp.float32
    count = sum(leaf.size for leaf in jax.tree.leaves(pair.params))
    assert count == sum(tensor.numel() for tensor in stored(pair).values())


def test_sharded_equals_single(untied: Pair, tmp_path: Path) -> None:
    untied.reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    assert_equal(load_params(tmp_path, untied.config), untied.params)


def test_both_generations_of_names(untied: Pair, tmp_path: Path) -> None:
    tensors = stored(untied)
    assert EMBEDDING in tensors and "visual.merger.ln_q.weight" in tensors
    nested = {
        re.sub("^visual", "model.visual", re.sub("^model", "model.language_model", name)): tensor
        for name, tensor in tensors.items()
    }
    assert_equal(load_params(folder_of(tmp_path, untied, nested), untied.config), untied.params)


def test_stored_and_asked_dtypes(untied: Pair, tmp_path: Path) -> None:
    half = {name: tensor.bfloat16() for name, tensor in stored(untied).items()}
    folder = folder_of(tmp_path, untied, half)
    params = load_params(folder, untied.config)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    # the tiny weights are representable in bfloat16
    assert_equal(load_params(folder, untied.config, jnp.float32), untied.params)
    assert_equal(load_params(untied.folder, untied.config, jnp.bfloat16), params)


def test_layers_of_different_types_are_no_stack(untied: Pair, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    tensors = stored(untied)
    tensors[name] = tensors[name].bfloat16()
    folder = folder_of(tmp_path, untied, tensors)
    with pytest.raises(WeightsError, match=rf"{re.escape(name)} is stored in .*; store all"):
        load_params(folder, untied.config)
    # asked for, the type is what was asked for
    assert_equal(load_params(folder, untied.config, jnp.float32), untied.params)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", ["untied", "tied"])
def test_transformers_reads_what_we_write(
    name: str, dtype: jnp.dtype, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pair: Pair = request.getfixturevalue(name)
    params = load_params(pair.folder, pair.config, dtype)
    save_checkpoint(tmp_path, pair.config, params)
    assert load_config(tmp_path) == pair.config
    assert_equal(load_params(tmp_path, pair.config), params)
    reference, report = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    assert str(reference.dtype).removeprefix("torch.") == jnp.dtype(dtype).name
    assert reference.generation_config.eos_token_id == list(pair.config.eos_token_ids)
    prompts = mixed_prompts()
    reread = reference_logits(reference.float().eval(), prompts)
    assert compare(reread, reference_logits(pair.reference, prompts)).difference == 0


# --------------------------------------------------------------------------- refusals (V11)


def without(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def with_tensor(name: str, *shape: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = torch.zeros(*shape)

    return change


REFUSED: list[tuple[Callable[[Tensors], None], str]] = [
    (without(NORM), r"missing \(1\): model\.norm\.weight"),
    (
        without("model.layers.1.self_attn.k_proj.bias"),
        r"missing \(1\): model\.layers\.1\.self_attn\.k_proj\.bias",
    ),
    (without("visual.blocks.3.norm2.weight"), r"missing \(1\): visual\.blocks\.3\.norm2\.weight"),
    (without("lm_head.weight"), r"missing \(1\): lm_head\.weight"),
    (with_tensor("visual.deepstack.0.weight", 2), r"unknown \(1\): visual\.deepstack\.0\.weight"),
    # a layer that the config does not know
    (
        with_tensor("model.layers.3.mlp.up_proj.weight", 96, 64),
        r"unknown \(1\): model\.layers\.3\.mlp\.up_proj\.weight",
    ),
    (with_tensor(NORM, 63), r"wrong shape \(1\): model\.norm\.weight \[63\]"),
    (
        with_tensor("model.layers.2.mlp.down_proj.weight", 96, 64),
        r"wrong shape \(1\): model\.layers\.2\.mlp\.down_proj\.weight \[96, 64\]",
    ),
    (
        with_tensor(EMBEDDING, 321, 64),
        r"wrong shape \(1\): model\.embed_tokens\.weight \[321, 64\]",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_does_not_fit_is_named(
    change: Callable[[Tensors], None], message: str, untied: Pair, tmp_path: Path
) -> None:
    tensors = stored(untied)
    change(tensors)
    with pytest.raises(WeightsError, match=rf"do not fit config\.json: {message}$"):
        load_params(folder_of(tmp_path, untied, tensors), untied.config)


def test_the_error_lists_both_sets(untied: Pair, tmp_path: Path) -> None:
    tensors = stored(untied)
    tensors["final_norm"] = tensors.pop(NORM)
    tensors["model.layers.0.input_layernorm.weight"] = torch.zeros(3)
    with pytest.raises(WeightsError) as error:
        load_params(folder_of(tmp_path, untied, tensors), untied.config)
    assert (
        "missing (1): model.norm.weight; unknown (1): final_norm; "
        "wrong shape (1): model.layers.0.input_layernorm.weight [3]"
    ) in str(error.value)


def test_a_tensor_stored_twice(untied: Pair, tmp_path: Path) -> None:
    tensors = stored(untied)
    folder = shards(tmp_path, [tensors, {NORM: tensors[NORM]}])
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is stored twice"):
        load_params(folder, untied.config)


def test_a_config_of_another_depth(untied: Pair) -> None:
    deeper = replace(untied.config, text=replace(untied.config.text, num_hidden_layers=4))
    with pytest.raises(WeightsError, match=r"missing \(12\): model\.layers\.3\..*, \.\.\.$"):
        load_params(untied.folder, deeper)
    shallower = replace(untied.config, vision=replace(untied.config.vision, depth=3))
    with pytest.raises(WeightsError, match=r"unknown \(12\): visual\.blocks\.3\."):
        load_params(untied.folder, shallower)


def test_known_tensors_may_stay_unread(tied: Pair, tmp_path: Path) -> None:
    """Stored frequencies, and the embedding repeated as a head."""
    tensors = stored(tied)
    assert "lm_head.weight" not in tensors
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    tensors["lm_head.weight"] = tensors[EMBEDDING].clone()
    assert_equal(load_params(folder_of(tmp_path, tied, tensors), tied.config), tied.params)


def test_a_head_that_is_not_the_tied_embedding(tied: Pair, tmp_path: Path) -> None:
    tensors = stored(tied)
    tensors["lm_head.weight"] = tensors[EMBEDDING] + 1
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs .* tie_word_embeddings"):
        load_params(folder_of(tmp_path, tied, tensors), tied.config)


def test_files_that_are_no_weights(untied: Pair, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no weights"):
        load_params(tmp_path, untied.config)
    tensors = stored(untied)
    shards(tmp_path, [tensors, {"extra": torch.zeros(1)}])
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"shards missing: model-1\.safetensors"):
        load_params(tmp_path, untied.config)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"index\.json: field 'weight_map' is missing"):
        load_params(tmp_path, untied.config)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(WeightsError, match=r"model\.safetensors: not a readable safetensors"):
        load_params(tmp_path, untied.config)
