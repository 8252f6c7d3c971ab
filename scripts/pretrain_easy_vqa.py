"""Trains the first bundled model on easy-vqa, from nothing: `python scripts/pretrain_easy_vqa.py`.

Reads the train split's pictures and questions (PyPI package easy-vqa) and the tokenizer of
scripts/build_bundled_tokenizer.py. Killed at any point, the same command goes on from the last
checkpoint. At the end it writes the model into --out in the published file format, and
scripts/evaluate_bundled.py prints the held-out figures of its card.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from PIL import Image

from verdict_jax import prompts
from verdict_jax.benchmarks.easy_vqa_language import COLORS, SHAPES
from verdict_jax.benchmarks.easy_vqa_steps import by_picture, draw_chain, draw_judgement
from verdict_jax.packing import PackedBatch, Packer, Scene
from verdict_jax.supervised import Schedule, fit
from verdict_jax.vlm.config import Config, TextConfig, VisionConfig
from verdict_jax.vlm.images import ImageProcessor, ProcessedImage, load_image, load_image_processor
from verdict_jax.vlm.tokenizer import load_tokenizer
from verdict_jax.vlm.weights import save_checkpoint

BUNDLED = Path(__file__).parent.parent / "verdict_jax" / "bundled" / "easy_vqa"

VISION = VisionConfig(
    depth=3,
    hidden_size=96,
    intermediate_size=256,
    num_heads=3,
    in_channels=3,
    patch_size=8,
    spatial_merge_size=2,
    temporal_patch_size=2,
    window_size=32,
    out_hidden_size=128,
    fullatt_block_indexes=(2,),
)

# Pictures of 64 x 64 pixels stay as they are, larger ones shrink to that area.
PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": VISION.patch_size,
    "merge_size": VISION.spatial_merge_size,
    "temporal_patch_size": VISION.temporal_patch_size,
    "min_pixels": 64 * 64,
    "max_pixels": 64 * 64,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
    "rescale_factor": 1 / 255,
    "resample": 3,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
}


@dataclass(frozen=True)
class Args:
    """Options of the training run."""

    steps: int = 1500
    """Updates in all."""
    scenes: int = 8
    """Pictures of a batch."""
    width: int = 384
    """Tokens of a training row."""
    learning_rate: float = 2e-3
    """Of AdamW, at the plateau."""
    judge_weight: float = 5.0
    """Loss weight of a judge's reply; a token of a chain has 1."""
    seed: int = 0
    """Of parameters and data."""
    checkpoints: Path = Path("checkpoints/easy_vqa")
    """Where the run keeps its state; delete the folder to start anew."""
    out: Path = BUNDLED
    """Folder of the tokenizer files, which the model joins."""


def build_config(tokenizer_folder: Path) -> Config:
    """The model around the tokenizer's vocabulary: 1.6 million parameters."""
    tokenizer = load_tokenizer(tokenizer_folder)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in tokenizer.get_added_vocab()}
    text = TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        mrope_section=(4, 6, 6),
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    return Config(
        vision=VISION,
        text=text,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        eos_token_ids=(ids["<|im_end|>"], ids["<|endoftext|>"]),
        pad_token_id=ids["<|endoftext|>"],
    )


@functools.lru_cache(maxsize=20000)
def processed(processor: ImageProcessor, path: Path, turns: int) -> ProcessedImage:
    """A picture, mirrored and turned upside down by the two bits of `turns`."""
    image = load_image(path)
    if turns & 1:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if turns & 2:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return processor.process(image)


@functools.cache
def pictures() -> tuple[Path, ...]:
    """The train pictures whose content is known, in a fixed order."""
    return tuple(sorted(by_picture("train")))


def draw_scene(processor: ImageProcessor, path: Path, rng: np.random.Generator) -> Scene:
    """A picture with chains and judgements about its questions."""
    items = by_picture("train")[path]
    picture = processed(processor, path, int(rng.integers(4)))
    order = rng.permutation(len(items))
    content = items[0].content
    labels = np.array([COLORS.index(content.color), SHAPES.index(content.shape)])
    return Scene(
        picture,
        tuple(draw_chain(items[i], rng) for i in order),
        tuple(draw_judgement(items[i], rng) for i in [*order, *order[::-1]]),
        np.tile(labels, (picture.num_tokens(VISION), 1)),
    )


def read_out_of(step: int) -> prompts.ReadOut:
    """Mostly digits, the default; the two others once in ten steps each."""
    return {8: "yes_no", 9: "verbal"}.get(step % 10, "digits")


def batch_of(packer: Packer, processor: ImageProcessor, args: Args, step: int) -> PackedBatch:
    """The data of one step, a pure function of it."""
    rng = np.random.default_rng((args.seed, step))
    chosen = rng.choice(len(pictures()), size=args.scenes, replace=False)
    scenes = [draw_scene(processor, pictures()[i], rng) for i in chosen]
    return packer.pack(scenes, read_out_of(step))


def main(args: Args) -> None:
    started = time.perf_counter()
    config = build_config(args.out)
    (args.out / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n")
    processor = load_image_processor(args.out, config.vision)
    packer = Packer(config, load_tokenizer(args.out), args.width, args.judge_weight)
    params = fit(
        config,
        Schedule(args.steps, args.learning_rate),
        (len(COLORS), len(SHAPES)),
        lambda step: batch_of(packer, processor, args, step),
        args.checkpoints,
        args.seed,
    )
    save_checkpoint(args.out, config, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params))
    size = sum(path.stat().st_size for path in args.out.iterdir())
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    minutes = (time.perf_counter() - started) / 60
    print(f"{args.out}: {count:,} parameters, {size / 1e6:.2f} MB, {minutes:.1f} minutes")
    shutil.rmtree(args.checkpoints)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
