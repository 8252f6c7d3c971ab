"""Trains the bundled model on tabletop and easy-vqa, from nothing: `python scripts/pretrain_bundled.py`.

Eight stages: the vision tower on what stands where; the whole model on drills that ask for it, on
tables that fill up; the same on full tables; on drills with choices, and on chains; with two more
layers, on naming a choice by its letter, without pictures; on drills and chains again; on chains
and judgements; the judges on steps that the model itself proposed, beside broken right ones. Reads
the tokenizer of scripts/build_bundled_tokenizer.py. Killed at any point, the same command goes on
from the last checkpoint. At the end it writes the model into --out in the published file format;
scripts/evaluate_bundled.py prints the held-out figures.
"""  # noqa: E501 - the command in one line

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Int
from rich.progress import track
from small_vlm import build_config, grow, write_model, write_preprocessor

from verdict_jax import prompts
from verdict_jax.benchmarks import easy_vqa_lessons
from verdict_jax.benchmarks.tabletop import draw_table
from verdict_jax.benchmarks.tabletop import lessons as tabletop_lessons
from verdict_jax.benchmarks.tabletop.drills import letter
from verdict_jax.benchmarks.tabletop.own_steps import (
    OwnSteps,
    draw_own,
    sample_own_steps,
    sampled_table,
)
from verdict_jax.benchmarks.tabletop.picture import PIXELS
from verdict_jax.benchmarks.tabletop.scene import FEWEST, MOST
from verdict_jax.json_records import decode, encode
from verdict_jax.packing import Lesson, PackedBatch, Packer, PictureBatch, pack_batch, pack_pictures
from verdict_jax.reasoner import VLMReasoner
from verdict_jax.run_folder import RunFolder, open_run
from verdict_jax.supervised import Schedule, fit, init_with_heads, language_loss, vision_loss
from verdict_jax.vlm.checkpoint import load_vlm
from verdict_jax.vlm.config import Config, VisionConfig
from verdict_jax.vlm.images import ImageProcessor, load_image_processor
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.sampling import SamplingSettings
from verdict_jax.vlm.tokenizer import load_tokenizer

BUNDLED = Path(__file__).parent.parent / "verdict_jax" / "bundled" / "tabletop"

VISION = VisionConfig(
    depth=4,
    hidden_size=128,
    intermediate_size=344,
    num_heads=4,
    in_channels=3,
    patch_size=8,
    spatial_merge_size=2,
    temporal_patch_size=2,
    window_size=PIXELS,
    out_hidden_size=128,
    fullatt_block_indexes=(3,),
)
# One window holds a whole picture of either world: what belongs together may lie across any border.

TOKEN = VISION.patch_size * VISION.spatial_merge_size
"""Pixels along a side of a merged image token."""

CLASSES = (*easy_vqa_lessons.CLASSES, *tabletop_lessons.CLASSES)
"""Of the auxiliary heads, side by side."""

LETTERS = 9
"""Drills in a row of letters: as many as fit."""

OWN_STEPS = "own_steps.jsonl"


@dataclass(frozen=True)
class Args:
    """Options of the training run."""

    vision_steps: int = 1500
    """Updates of the vision tower alone."""
    pictures: int = 32
    """Pictures of a batch of that stage, one in eight from easy-vqa."""
    reading_steps: int = 900
    """Updates of the whole model on reading drills, on tables that fill up."""
    full_steps: int = 600
    """The same on full tables, with a learning rate that starts anew."""
    choice_steps: int = 400
    """Updates of the whole model on drills with choices and on chains."""
    letter_steps: int = 320
    """Updates of the whole model, grown by two layers, on letters without pictures."""
    chain_steps: int = 1000
    """Updates on drills with choices and on chains again."""
    readings: int = 16
    """Pictures, or rows of letters, of a batch of these stages; one picture is from easy-vqa."""
    steps: int = 800
    """Updates of the whole model on chains and judgements."""
    own_steps: int = 500
    """Updates of the last stage, on the model's own steps too."""
    lessons: int = 8
    """Pictures of a batch of the last two stages, one of them from easy-vqa."""
    width: int = 448
    """Tokens of a training row."""
    learning_rate: float = 2e-3
    """Of AdamW, at the plateau, until the model grows."""
    grown_rate: float = 5e-4
    """The same from then on; half of it in the last stage. At 2e-3 the grown layers lose what they
    begin with."""
    answer_weight: float = 5.0
    """Loss weight of the tokens of an answer; another token of a chain has 1."""
    judge_weight: float = 8.0
    """The same of a judge's reply in the seventh stage."""
    own_weight: float = 20.0
    """The same in the last stage."""
    sampled: int = 2560
    """Tables about which the model's own steps are sampled."""
    temperature: float = 1.0
    """Of that sampling: above the 0.8 of inference, for more slips."""
    auxiliary_weight: float = 0.3
    """Loss weight of the auxiliary heads, after the first stage."""
    seed: int = 0
    """Of parameters and data."""
    checkpoints: Path = Path("checkpoints/bundled")
    """Where the run keeps its state; delete the folder to start anew."""
    out: Path = BUNDLED
    """Folder of the tokenizer files, which the model joins."""


Labels = Int[np.ndarray, "tokens attributes"]


def beside(easy: Labels | None, table: Labels | None) -> Labels:
    """One world's labels in the columns of both worlds' heads."""
    known = easy if easy is not None else table
    assert known is not None
    labels = np.full((len(known), len(CLASSES)), -1, np.int32)
    first = len(easy_vqa_lessons.CLASSES)
    labels[:, slice(0, first) if known is easy else slice(first, None)] = known
    return labels


def picture_batch(config: Config, processor: ImageProcessor, args: Args, step: int) -> PictureBatch:
    """The data of one step of the first stage, a pure function of it."""
    rng = np.random.default_rng((args.seed, 1, step))
    pictures, labels = [], []
    for path in easy_vqa_lessons.draw_paths(args.pictures // 8, rng):
        picture, easy = easy_vqa_lessons.draw_picture(processor, path, TOKEN, rng)
        pictures.append(picture)
        labels.append(beside(easy, None))
    while len(pictures) < args.pictures:
        table = draw_table("train", "train", rng)
        picture, own = tabletop_lessons.label_picture(processor, table.scene, table.picture, TOKEN)
        pictures.append(picture)
        labels.append(beside(None, own))
    return pack_pictures(config, pictures, labels)[0]


def in_both(lesson: Lesson) -> Lesson:
    """A lesson of tabletop with its labels in the columns of both worlds' heads."""
    return replace(lesson, attributes=beside(None, lesson.attributes))


def easy_lesson(processor: ImageProcessor, rng: np.random.Generator) -> Lesson:
    """A picture of easy-vqa with all its questions."""
    (path,) = easy_vqa_lessons.draw_paths(1, rng)
    lesson = easy_vqa_lessons.draw_lesson(processor, path, TOKEN, rng)
    return replace(lesson, attributes=beside(lesson.attributes, None))


def things_at(share: float) -> tuple[int, int]:
    """How many things are on the tables of the drills: few first.

    Args:
        share: of the reading stage that is done.
    """
    return (2, 4) if share < 0.3 else (3, 6) if share < 0.5 else (FEWEST, MOST)


def drill_batch(
    packer: Packer, processor: ImageProcessor, args: Args, first: int, step: int
) -> PackedBatch:
    """The data of one step of the stages of drills, a pure function of it.

    Args:
        packer, processor, args: of the run.
        first: steps of drills before the stage.
        step: of the stage.
    """
    rng = np.random.default_rng((args.seed, 3, first + step))
    things = things_at((first + step) / args.reading_steps)
    lessons = []
    for _ in range(args.readings - 1):
        lesson = tabletop_lessons.draw_reading(processor, TOKEN, rng, things)
        lessons.append(in_both(lesson))
    lessons.append(easy_lesson(processor, rng))
    return packer.pack_chains(lessons)


def chain_batch(
    packer: Packer, processor: ImageProcessor, args: Args, stage: int, step: int
) -> PackedBatch:
    """The data of one step of the stages of choices and of chains, a pure function of it.

    Half of the tables with lettered drills, the others with questions.

    Args:
        packer, processor, args: of the run.
        stage: its number.
        step: of the stage.
    """
    rng = np.random.default_rng((args.seed, stage, step))
    lessons = []
    for number in range(args.readings - 1):
        if number % 2:
            lesson = tabletop_lessons.draw_lesson(processor, TOKEN, rng)
        else:
            lesson = tabletop_lessons.draw_reading(processor, TOKEN, rng, lettered=True)
        lessons.append(in_both(lesson))
    lessons.append(easy_lesson(processor, rng))
    return packer.pack_chains(lessons)


def letter_batch(packer: Packer, args: Args, step: int) -> PackedBatch:
    """The data of one step of the stage of letters, a pure function of it.

    Answers alone are learnt: what else there is to learn drowns the little that leads to letters.
    """
    rng = np.random.default_rng((args.seed, 6, step))
    only_answers = replace(packer, step_weight=0.0, answer_weight=1.0)
    rows = [
        only_answers.chain_row([letter(rng) for _ in range(LETTERS)], None)
        for _ in range(args.readings)
    ]
    return pack_batch(None, rows, args.width, packer.config.pad_token_id)


def read_out_of(step: int) -> prompts.ReadOut:
    """Mostly digits, the default; the two others once in ten steps each."""
    return {8: "yes_no", 9: "verbal"}.get(step % 10, "digits")


def packed_batch(packer: Packer, processor: ImageProcessor, args: Args, step: int) -> PackedBatch:
    """The data of one step of the seventh stage, a pure function of it."""
    rng = np.random.default_rng((args.seed, 2, step))
    lessons = []
    for _ in range(args.lessons - 1):
        lesson = tabletop_lessons.draw_lesson(processor, TOKEN, rng)
        lessons.append(in_both(lesson))
    lessons.append(easy_lesson(processor, rng))
    return packer.pack(lessons, read_out_of(step))


def own_lesson(
    processor: ImageProcessor, seed: int, nodes: Sequence[OwnSteps], rng: np.random.Generator
) -> Lesson:
    """A table with its chain; of the judgements two thirds are of the model's own steps."""
    table = sampled_table(seed, nodes[0].table)
    (item,) = table.items
    picture, labels = tabletop_lessons.label_picture(processor, table.scene, table.picture, TOKEN)
    judgements = [tabletop_lessons.judgement(item, rng) for _ in range(4)]
    judgements += draw_own(item, nodes, 8, rng)
    order = rng.permutation(len(judgements))
    return Lesson(
        picture,
        (tabletop_lessons.right_chain(item),),
        tuple(judgements[i] for i in order),
        beside(None, labels),
    )


def own_batch(
    packer: Packer,
    processor: ImageProcessor,
    args: Args,
    nodes: Mapping[int, Sequence[OwnSteps]],
    step: int,
) -> PackedBatch:
    """The data of one step of the last stage, a pure function of it and of the sampled steps."""
    rng = np.random.default_rng((args.seed, 4, step))
    tables = rng.choice(sorted(nodes), args.lessons - 1)
    lessons = [own_lesson(processor, args.seed, nodes[int(table)], rng) for table in tables]
    lessons.append(easy_lesson(processor, rng))
    return packer.pack(lessons, read_out_of(step))


def sampled_steps(
    run: RunFolder, folder: Path, args: Args, at_once: int = 64
) -> dict[int, list[OwnSteps]]:
    """By table, the steps that the model in `folder` proposes; a journal keeps what is done."""
    stored = [decode(OwnSteps, json.loads(line)) for line in run.read(OWN_STEPS)]
    first = at_once * ((1 + max((node.table for node in stored), default=-1)) // at_once)
    nodes = [node for node in stored if node.table < first]
    reasoner = VLMReasoner(load_vlm(folder), SamplingSettings(args.temperature, max_tokens=40))
    for start in track(range(first, args.sampled, at_once), "sampling own steps"):
        found = sample_own_steps(reasoner, args.seed, start, min(at_once, args.sampled - start))
        run.append(OWN_STEPS, [json.dumps(encode(node)) for node in found])
        nodes += found
    by_table: dict[int, list[OwnSteps]] = {}
    for node in nodes:
        by_table.setdefault(node.table, []).append(node)
    return by_table


def train(run: RunFolder, args: Args) -> None:
    """All stages; writes the model."""
    started = time.perf_counter()
    config = build_config(args.out, VISION, layers=5, intermediate=384, positions=2048)
    # pictures of either world stay as they are
    write_preprocessor(args.out, VISION, 64 * 64, PIXELS * PIXELS)
    processor = load_image_processor(args.out, config.vision)
    packer = Packer(
        config, load_tokenizer(args.out), args.width, args.judge_weight, args.answer_weight
    )
    params = fit(
        vision_loss(config, CLASSES),
        init_with_heads(config, CLASSES, jax.random.key(args.seed)),
        Schedule(args.vision_steps, args.learning_rate),
        lambda step: picture_batch(config, processor, args, step),
        args.checkpoints / "vision",
    )

    def taught(
        name: str, steps: int, rate: float, batch_of: Callable[[int], PackedBatch]
    ) -> Params:
        """The model as it stands, after one more stage."""
        return fit(
            language_loss(config, CLASSES, args.auxiliary_weight),
            params,
            Schedule(steps, rate),
            batch_of,
            args.checkpoints / name,
        )

    draw = functools.partial(drill_batch, packer, processor, args)
    first, grown = args.learning_rate, args.grown_rate
    params = taught("reading", args.reading_steps, first, functools.partial(draw, 0))
    params = taught("full", args.full_steps, first, functools.partial(draw, args.reading_steps))
    draw = functools.partial(chain_batch, packer, processor, args)
    params = taught("choices", args.choice_steps, first, functools.partial(draw, 5))
    config, params = grow(config, params, jax.random.key(args.seed))
    letters = functools.partial(letter_batch, packer, args)
    params = taught("letters", args.letter_steps, grown, letters)
    params = taught("chains", args.chain_steps, grown, functools.partial(draw, 7))
    both = functools.partial(packed_batch, packer, processor, args)
    params = taught("language", args.steps, grown, both)
    # sampling reads a checkpoint, in the parameters' own float32
    second = args.checkpoints / "model"
    write_model(args.out, second, config, params, jnp.float32)
    nodes = sampled_steps(run, second, args)
    judging = replace(packer, judge_weight=args.own_weight)
    own = functools.partial(own_batch, judging, processor, args, nodes)
    params = taught("own", args.own_steps, grown / 2, own)
    write_model(args.out, args.out, config, params, jnp.bfloat16)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(
        f"{args.out}: {count:,} parameters with the heads, {size / 1e6:.2f} MB; this run took "
        f"{(time.perf_counter() - started) / 60:.1f} minutes, "
        f"{time.process_time() / 60:.1f} of one core"
    )


def main(args: Args) -> None:
    own = asdict(args)
    settings = {name: own[name] for name in own if name not in ("checkpoints", "out")}
    # a killed run must not go on with other settings
    with open_run(args.checkpoints, settings) as run:
        train(run, args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
