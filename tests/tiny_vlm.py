"""A tiny random VLM in the published format, with questions about random pictures."""

from __future__ import annotations

import functools
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from verdict_jax.bundled import bundled_checkpoint
from verdict_jax.protocols import Question
from verdict_jax.reasoner import ReasonerState
from verdict_jax.vlm import model
from verdict_jax.vlm.checkpoint import VLM, load_vlm
from verdict_jax.vlm.config import Config, TextConfig, VisionConfig
from verdict_jax.vlm.images import load_image
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.prefixes import Prefixes
from verdict_jax.vlm.rows import pack_tokens, token_row
from verdict_jax.vlm.sampling import suppressed_logprobs
from verdict_jax.vlm.weights import parameter_shapes, save_checkpoint
from verdict_jax.vlm.windows import pack_patches

PREPROCESSOR = {
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 16 * 16,
    "max_pixels": 64 * 64,
}
WIDTH = 256
SIZE = 6
SMALL_FILES = ("tokenizer.json", "tokenizer_config.json")


def tiny_config() -> Config:
    """Around the bundled tokenizer, with a vocabulary padded by a few ids."""
    table = json.loads((bundled_checkpoint() / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in table["added_tokens"]}
    return Config(
        vision=VisionConfig(
            depth=2,
            hidden_size=16,
            intermediate_size=24,
            num_heads=2,
            in_channels=3,
            patch_size=8,
            spatial_merge_size=2,
            temporal_patch_size=2,
            window_size=32,
            out_hidden_size=32,
            fullatt_block_indexes=(1,),
        ),
        text=TextConfig(
            vocab_size=max(ids.values()) + 4,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            rms_norm_eps=1e-6,
            rope_theta=1e4,
            mrope_section=(2, 3, 3),
            tie_word_embeddings=False,
            max_position_embeddings=400,
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        eos_token_ids=(ids["<|im_end|>"], ids["<|endoftext|>"]),
        pad_token_id=ids["<|endoftext|>"],
    )


@functools.cache
def tiny_params(seed: int = 0) -> Params:
    """Random, and large enough that every part of the model moves the logits."""
    rng = np.random.default_rng(seed)

    def leaf(path: jax.tree_util.KeyPath, shape: jax.ShapeDtypeStruct) -> jax.Array:
        noise = 0.25 * rng.standard_normal(shape.shape)
        is_scale = jax.tree_util.keystr(path[-1:], simple=True) == "scale"
        return jnp.asarray(noise + is_scale, jnp.float32)

    return jax.tree_util.tree_map_with_path(leaf, parameter_shapes(tiny_config()))


def write_checkpoint(folder: Path, seed: int = 0) -> Path:
    """A whole checkpoint folder."""
    save_checkpoint(folder, tiny_config(), tiny_params(seed))
    for name in SMALL_FILES:
        shutil.copy(bundled_checkpoint() / name, folder / name)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), encoding="utf-8")
    return folder


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    write_checkpoint(Path(folder.name) / "tiny")
    return folder


def tiny_folder() -> Path:
    """Shared: do not change it."""
    return Path(_folder().name) / "tiny"


@functools.cache
def _vlm() -> VLM:
    return load_vlm(tiny_folder())


def tiny_vlm() -> VLM:
    """The checkpoint of `tiny_folder`, with an empty picture memo."""
    return replace(_vlm())


def picture(seed: int, size: tuple[int, int] = (64, 64)) -> Image.Image:
    """Random pixels; width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def png(seed: int) -> bytes:
    """A random picture as the bytes of a file."""
    buffer = io.BytesIO()
    picture(seed).save(buffer, "PNG")
    return buffer.getvalue()


def question(seed: int, text: str = "Is there a circle?", **fields: str) -> Question:
    """One picture, one question."""
    return Question(fields.get("id", f"item {seed}"), text, (picture(seed),))


def batch(*seeds: int) -> list[Question]:
    """Questions about pictures of these seeds, filled up to SIZE, so that tests share shapes."""
    fillers = range(100, 100 + SIZE - len(seeds))
    return [question(seed) for seed in (*seeds, *fillers)]


def full_logits(
    vlm: VLM,
    messages: Sequence[dict[str, str]],
    pictures: Sequence[Image.Image],
    more: Sequence[int],
) -> np.ndarray:
    """Oracle: logits [time, vocab] of one whole prompt without cache, bucket or neighbours.

    The prompt is the tokenizer's own rendering of the chat template, encoded as one string.

    Args:
        messages: role and content, pictures written as <IMG>.
        more: ids behind the prompt.
    """
    rendered = vlm.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    text = str(rendered).replace("<IMG>", "<|vision_start|><|image_pad|><|vision_end|>")
    ids = np.array([*vlm.tokenizer.encode(text, add_special_tokens=False), *more], np.int32)
    processed = [vlm.image_processor.process(load_image(image)) for image in pictures]
    # always two pictures and WIDTH tokens: one compilation for all prompts
    patches, packed = pack_patches(processed, vlm.config.vision, 2, 4)
    features = _encode(vlm.config, vlm.params, patches)
    row = token_row(ids, vlm.config, packed)
    inputs = pack_tokens([row], 1, WIDTH, 0)
    return np.asarray(_forward(vlm.config, vlm.params, inputs, features))[0, : len(row.tokens)]


def leaves(state: ReasonerState | Prefixes) -> list[np.ndarray]:
    """A copy of all arrays of a state."""
    return [np.array(leaf) for leaf in jax.tree.leaves(state)]


def logprobs(vlm: VLM, logits: np.ndarray) -> np.ndarray:
    """Log-probabilities without the suppressed ids."""
    return np.asarray(suppressed_logprobs(jnp.asarray(logits), vlm.masks.suppressed))


_encode = jax.jit(model.encode_images, static_argnums=0)
_forward = jax.jit(model.forward, static_argnums=0)
