"""Trains the first bundled model on easy-vqa, from nothing: `python scripts/pretrain_easy_vqa.py`.

Reads the train split's pictures and questions (PyPI package easy-vqa) and the tokenizer of
scripts/build_bundled_tokenizer.py. Killed at any point, the same command goes on from the last
checkpoint. At the end it writes the model into --out in the published file format, and
scripts/evaluate_bundled.py prints the held-out figures of its card.
"""

from __future__ import annotations

import functools
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import evaluate_bundled
import jax
import jax.numpy as jnp
import numpy as np
import tyro
from small_vlm import build_config, write_model, write_preprocessor

from verdict_jax import prompts
from verdict_jax.benchmarks.easy_vqa_lessons import (
    CLASSES,
    draw_lesson,
    draw_paths,
    draw_picture,
)
from verdict_jax.packing import PackedBatch, Packer, PictureBatch, pack_pictures
from verdict_jax.run_folder import open_run
from verdict_jax.supervised import Schedule, fit, init_with_heads, language_loss, vision_loss
from verdict_jax.vlm.config import Config, VisionConfig
from verdict_jax.vlm.images import ImageProcessor, load_image_processor
from verdict_jax.vlm.tokenizer import load_tokenizer

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
    window_size=64,
    out_hidden_size=128,
    fullatt_block_indexes=(2,),
)
# One window holds a whole 64 x 64 picture: its shape may lie across any border.

TOKEN = VISION.patch_size * VISION.spatial_merge_size
"""Pixels along a side of a merged image token."""


@dataclass(frozen=True)
class Args:
    """Options of the training run."""

    vision_steps: int = 900
    """Updates of the vision tower alone, on the pictures' colours and kinds."""
    pictures: int = 32
    """Pictures of a batch of that stage."""
    steps: int = 320
    """Updates of the whole model, on chains and judgements."""
    judging_steps: int = 400
    """Updates of a third stage like the second, with more weight on the judgements."""
    scenes: int = 8
    """Pictures of a batch of the second and third stage."""
    width: int = 384
    """Tokens of a training row."""
    learning_rate: float = 2e-3
    """Of AdamW, at the plateau."""
    judge_weight: float = 5.0
    """Loss weight of a judge's reply in the second stage; a token of a chain has 1."""
    judging_weight: float = 20.0
    """The same in the third stage."""
    auxiliary_weight: float = 0.2
    """Loss weight of the auxiliary heads in the second and third stage."""
    seed: int = 0
    """Of parameters and data."""
    checkpoints: Path = Path("checkpoints/easy_vqa")
    """Where the run keeps its state; delete the folder to start anew."""
    out: Path = BUNDLED
    """Folder of the tokenizer files, which the model joins."""


def picture_batch(config: Config, processor: ImageProcessor, args: Args, step: int) -> PictureBatch:
    """The data of one step of the first stage, a pure function of it."""
    rng = np.random.default_rng((args.seed, 1, step))
    drawn = [draw_picture(processor, path, TOKEN, rng) for path in draw_paths(args.pictures, rng)]
    return pack_pictures(config, [p for p, _ in drawn], [labels for _, labels in drawn])[0]


def read_out_of(step: int) -> prompts.ReadOut:
    """Mostly digits, the default; the two others once in ten steps each."""
    return {8: "yes_no", 9: "verbal"}.get(step % 10, "digits")


def packed_batch(
    packer: Packer, processor: ImageProcessor, args: Args, stage: int, step: int
) -> PackedBatch:
    """The data of one step of the second or third stage, a pure function of it."""
    rng = np.random.default_rng((args.seed, stage, step))
    scenes = [draw_lesson(processor, path, TOKEN, rng) for path in draw_paths(args.scenes, rng)]
    return packer.pack(scenes, read_out_of(step))


def train(args: Args) -> None:
    """All stages; writes the model."""
    started = time.perf_counter()
    config = build_config(args.out, VISION, layers=4, intermediate=352, positions=2048)
    # pictures of 64 x 64 pixels stay as they are, larger ones shrink to that area
    write_preprocessor(args.out, VISION, 64 * 64, 64 * 64)
    processor = load_image_processor(args.out, config.vision)
    tokenizer = load_tokenizer(args.out)
    params = fit(
        vision_loss(config, CLASSES),
        init_with_heads(config, CLASSES, jax.random.key(args.seed)),
        Schedule(args.vision_steps, args.learning_rate),
        lambda step: picture_batch(config, processor, args, step),
        args.checkpoints / "vision",
    )
    stages = (
        (2, "language", args.steps, args.judge_weight),
        (3, "judging", args.judging_steps, args.judging_weight),
    )
    for stage, name, steps, judge_weight in stages:
        packer = Packer(config, tokenizer, args.width, judge_weight, 1.0)
        params = fit(
            language_loss(config, CLASSES, args.auxiliary_weight),
            params,
            Schedule(steps, args.learning_rate),
            functools.partial(packed_batch, packer, processor, args, stage),
            args.checkpoints / name,
        )
    write_model(args.out, args.out, config, params, jnp.bfloat16)
    del params["auxiliary"]
    size = sum(path.stat().st_size for path in args.out.iterdir())
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(
        f"{args.out}: {count:,} parameters, {size / 1e6:.2f} MB; this run took "
        f"{(time.perf_counter() - started) / 60:.1f} minutes, "
        f"{time.process_time() / 60:.1f} of one core"
    )


def main(args: Args) -> None:
    own = asdict(args)
    settings = {name: own[name] for name in own if name not in ("checkpoints", "out")}
    # a killed run must not go on with other settings
    with open_run(args.checkpoints, settings):
        train(args)
    evaluate_bundled.main(evaluate_bundled.Args(model=args.out))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
