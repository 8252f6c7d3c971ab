"""Published checkpoints <-> parameter trees, complete in both directions (known-fault V11)."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from verdict_jax.vlm.config import Config, config_to_json, read_json
from verdict_jax.vlm.model import init_params
from verdict_jax.vlm.parameters import Params

Transform = Literal["same", "transpose", "flatten"]


class WeightsError(ValueError):
    """A checkpoint whose tensors do not fit the model; the message lists what is off."""


@dataclass(frozen=True)
class _Rule:
    """One published name and the leaf it fills; `{}` in the name stands for the layer."""

    name: str
    path: tuple[str, ...]
    transform: Transform = "same"


def _dense(name: str, path: tuple[str, ...], bias: bool) -> list[_Rule]:
    rules = [_Rule(f"{name}.weight", (*path, "linear", "kernel"), "transpose")]
    if bias:
        rules.append(_Rule(f"{name}.bias", (*path, "linear", "bias")))
    return rules


def _mlp(name: str, path: tuple[str, ...], bias: bool) -> list[_Rule]:
    parts = ("gate_proj", "up_proj", "down_proj")
    return [rule for part in parts for rule in _dense(f"{name}.{part}", (*path, part), bias)]


@functools.lru_cache
def _rules(config: Config) -> tuple[_Rule, ...]:
    layers, blocks = ("text", "layers"), ("vision", "blocks")
    rules = [
        _Rule("model.embed_tokens.weight", ("text", "embed_tokens", "embedding")),
        _Rule("model.norm.weight", ("text", "norm", "scale")),
        _Rule(
            "visual.patch_embed.proj.weight",
            ("vision", "patch_embed", "linear", "kernel"),
            "flatten",
        ),
        _Rule("visual.merger.ln_q.weight", ("vision", "merger", "ln_q", "scale")),
        *_dense("visual.merger.mlp.0", ("vision", "merger", "fc1"), True),
        *_dense("visual.merger.mlp.2", ("vision", "merger", "fc2"), True),
        *_dense("visual.blocks.{}.attn.qkv", (*blocks, "qkv"), True),
        *_dense("visual.blocks.{}.attn.proj", (*blocks, "proj"), True),
        *_mlp("visual.blocks.{}.mlp", (*blocks, "mlp"), True),
        *_dense("model.layers.{}.self_attn.q_proj", (*layers, "q_proj"), True),
        *_dense("model.layers.{}.self_attn.k_proj", (*layers, "k_proj"), True),
        *_dense("model.layers.{}.self_attn.v_proj", (*layers, "v_proj"), True),
        *_dense("model.layers.{}.self_attn.o_proj", (*layers, "o_proj"), False),
        *_mlp("model.layers.{}.mlp", (*layers, "mlp"), False),
    ]
    for norm in ("norm1", "norm2"):
        rules.append(_Rule(f"visual.blocks.{{}}.{norm}.weight", (*blocks, norm, "scale")))
    for norm in ("input_layernorm", "post_attention_layernorm"):
        rules.append(_Rule(f"model.layers.{{}}.{norm}.weight", (*layers, norm, "scale")))
    if not config.text.tie_word_embeddings:
        rules += _dense("lm_head", ("text", "lm_head"), False)
    return tuple(rules)


def _published(name: str) -> str:
    """One spelling for both generations of names: transformers 5 nests the towers in `model.`."""
    if name.startswith("model.visual."):
        return name.removeprefix("model.")
    return re.sub(r"^(model\.)?language_model\.", "model.", name)


def _ignorable(config: Config, name: str) -> bool:
    """Tensors that a complete load may leave unread, each for a reason."""
    # Tied checkpoints may repeat the embedding as a head; old ones store computed frequencies.
    return (config.text.tie_word_embeddings and name == "lm_head.weight") or name.endswith(
        "rotary_emb.inv_freq"
    )


def _depth(config: Config, rule: _Rule) -> int | None:
    if "{}" not in rule.name:
        return None
    return config.vision.depth if rule.path[0] == "vision" else config.text.num_hidden_layers


def _shards(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise WeightsError(f"{index}: field 'weight_map' is missing")
        shards = [folder / str(name) for name in sorted({str(v) for v in weight_map.values()})]
        absent = [shard.name for shard in shards if not shard.is_file()]
        if absent:
            raise WeightsError(f"{folder}: weight shards missing: {', '.join(absent)}")
        return shards
    raise WeightsError(
        f"{folder}: no weights (model.safetensors or model.safetensors.index.json); "
        "download the whole checkpoint folder"
    )


def _tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for shard in _shards(folder):
        try:
            with safe_open(shard, framework="flax") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    yield _published(name), np.asarray(tensors.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{shard}: not a readable safetensors file ({error})") from error


def _to_leaf(tensor: np.ndarray, transform: Transform) -> np.ndarray:
    if transform == "transpose":
        return tensor.T
    if transform == "flatten":
        # Conv3d over non-overlapping patches is a matmul over flattened ones.
        return tensor.reshape(tensor.shape[0], -1).T
    return tensor


def _get(tree: Params, path: tuple[str, ...]) -> jax.Array:
    node: Params | jax.Array = tree
    for key in path:
        assert isinstance(node, dict)
        node = node[key]
    assert not isinstance(node, dict)
    return node


def _set(tree: Params, path: tuple[str, ...], leaf: jax.Array) -> None:
    for key in path[:-1]:
        child = tree.setdefault(key, {})
        assert isinstance(child, dict)
        tree = child
    tree[path[-1]] = leaf


@functools.lru_cache
def parameter_shapes(config: Config) -> PyTree[jax.ShapeDtypeStruct]:
    """The tree's shapes, without allocating it."""
    return jax.eval_shape(lambda key: init_params(config, key), jax.random.key(0))


def load_params(folder: Path, config: Config, dtype: DTypeLike | None = None) -> Params:
    """Parameters of a published checkpoint folder.

    Args:
        folder: holds model.safetensors, or its shards with model.safetensors.index.json.
        config: of the same folder.
        dtype: of the parameters; None keeps the stored one.

    Raises:
        WeightsError: no weights, an unreadable file, tensors missing, unknown, stored twice or of
            a wrong shape (each named), layers stored in different types while `dtype` is None, a
            stored head that is not the tied embedding.
    """
    rules = _rules(config)
    wanted: dict[str, tuple[_Rule, int | None]] = {}
    for rule in rules:
        depth = _depth(config, rule)
        for layer in [None] if depth is None else range(depth):
            wanted[rule.name.format(layer)] = (rule, layer)
    leaves = jax.tree_util.tree_leaves_with_path(parameter_shapes(config))
    shapes = {tuple(key.key for key in path): leaf.shape for path, leaf in leaves}
    stacks: dict[tuple[str, ...], np.ndarray] = {}
    params: Params = {}
    seen: set[str] = set()
    unknown: list[str] = []
    misshapen: list[str] = []
    repeated_head: np.ndarray | None = None
    for name, tensor in _tensors(folder):
        if name not in wanted:
            if not _ignorable(config, name):
                unknown.append(name)
            elif name == "lm_head.weight":
                repeated_head = tensor
            continue
        if name in seen:
            raise WeightsError(f"{folder}: tensor {name} is stored twice")
        seen.add(name)
        rule, layer = wanted[name]
        leaf = _to_leaf(tensor, rule.transform)
        full_shape = shapes[rule.path]
        shape = full_shape if layer is None else full_shape[1:]
        if leaf.shape != shape:
            misshapen.append(f"{name} {list(tensor.shape)}")
            continue
        if dtype is not None:
            leaf = leaf.astype(dtype)
        if layer is None:
            _set(params, rule.path, jnp.asarray(leaf))
        else:
            if rule.path not in stacks:
                stacks[rule.path] = np.empty(full_shape, leaf.dtype)
            stack = stacks[rule.path]
            if stack.dtype != leaf.dtype:
                raise WeightsError(
                    f"{folder}: tensor {name} is stored in {leaf.dtype}, the same of another layer "
                    f"in {stack.dtype}; store all layers in one type"
                )
            stack[layer] = leaf
    missing = sorted(set(wanted) - seen)
    if missing or unknown or misshapen:
        parts = [("missing", missing), ("unknown", sorted(unknown)), ("wrong shape", misshapen)]
        listed = "; ".join(
            f"{what} ({len(names)}): {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            for what, names in parts
            if names
        )
        raise WeightsError(f"{folder}: weights do not fit config.json: {listed}")
    if repeated_head is not None:
        embedding = np.asarray(_get(params, ("text", "embed_tokens", "embedding")))
        if not np.array_equal(repeated_head.astype(embedding.dtype), embedding):
            raise WeightsError(
                f"{folder}: lm_head.weight differs from the embedding that it repeats; "
                "tie_word_embeddings should be false"
            )
    for path in list(stacks):
        _set(params, path, jnp.asarray(stacks.pop(path)))
    return params


def save_checkpoint(folder: Path, config: Config, params: Params) -> None:
    """Writes config.json, generation_config.json and model.safetensors in the published format.

    Tokenizer and preprocessor files are the caller's to copy. The result is read back by
    `load_params` and by transformers. Tensors keep the parameters' dtype.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {}
    for rule in _rules(config):
        leaf = np.asarray(_get(params, rule.path))
        depth = _depth(config, rule)
        for layer in [None] if depth is None else range(depth):
            tensor = leaf if layer is None else leaf[layer]
            if rule.transform != "same":
                tensor = tensor.T
            if rule.transform == "flatten":
                vision = config.vision
                tensor = tensor.reshape(
                    -1,
                    vision.in_channels,
                    vision.temporal_patch_size,
                    vision.patch_size,
                    vision.patch_size,
                )
            tensors[rule.name.format(layer)] = np.ascontiguousarray(tensor)
    dtype = str(tensors["model.norm.weight"].dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    stops = {"eos_token_id": list(config.eos_token_ids), "pad_token_id": config.pad_token_id}
    for name, table in (
        ("config.json", config_to_json(config, dtype)),
        ("generation_config.json", stops),
    ):
        (folder / name).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
