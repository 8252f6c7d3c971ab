"""What the trainings of the small models share: a config around a tokenizer, files, growth."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
from jax.typing import DTypeLike

from verdict_jax.induction import prepend_induction
from verdict_jax.vlm.config import Config, TextConfig, VisionConfig
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.tokenizer import load_tokenizer
from verdict_jax.vlm.weights import save_checkpoint


def build_config(
    tokenizer_folder: Path, vision: VisionConfig, layers: int, intermediate: int, positions: int
) -> Config:
    """A decoder of width 128 around the tokenizer's vocabulary.

    Args:
        tokenizer_folder: of the model.
        vision: its vision tower.
        layers: of the decoder.
        intermediate: width of the decoder's MLPs.
        positions: the most tokens of a row.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.get_added_vocab()}
    text = TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        mrope_section=(4, 6, 6),
        tie_word_embeddings=True,
        max_position_embeddings=positions,
    )
    return Config(
        vision=vision,
        text=text,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        eos_token_ids=(ids["<|im_end|>"], ids["<|endoftext|>"]),
        pad_token_id=ids["<|endoftext|>"],
    )


def grow(config: Config, params: Params, key: jax.Array) -> tuple[Config, Params]:
    """The model with two more decoder layers, before its own."""
    text, grown = prepend_induction(config.text, params["text"], key)
    return replace(config, text=text), {**params, "text": grown}


def write_preprocessor(folder: Path, vision: VisionConfig, fewest: int, most: int) -> None:
    """Writes preprocessor_config.json.

    Args:
        folder: of the model.
        vision: its vision tower.
        fewest, most: pixels of a picture that stays as it is; others are brought between them.
    """
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "min_pixels": fewest,
        "max_pixels": most,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
        "rescale_factor": 1 / 255,
        "resample": 3,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")


def write_model(
    source: Path, folder: Path, config: Config, params: Params, dtype: DTypeLike
) -> None:
    """A checkpoint folder, without the auxiliary heads.

    Args:
        source: folder of the tokenizer and of preprocessor_config.json.
        folder: where the model goes; may be `source`.
        config, params: the model.
        dtype: of the stored weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder != source:
        for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
            shutil.copy(source / name, folder / name)
    own = {name: leaf for name, leaf in params.items() if name != "auxiliary"}
    save_checkpoint(folder, config, jax.tree.map(lambda leaf: leaf.astype(dtype), own))
