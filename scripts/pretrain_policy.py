"""Trains the base policy of the world of flags, from nothing: `python scripts/pretrain_policy.py`.

Four stages: the vision tower on flags; the whole model on sound demonstrations that mostly search,
so that it learns to name flags, to copy and to remember; then twice from there, on demonstrations
of every arm: with the stated corruption (the base policy) and without (the ceiling, at equal
compute). Reads the tokenizer of scripts/build_flags_tokenizer.py. Killed at any point, the same
command goes on from the last checkpoint. At the end it writes both models in the published file
format; scripts/evaluate_policy.py prints the held-out figures.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Int, UInt8
from PIL import Image
from small_vlm import build_config, grow, write_model, write_preprocessor
from transformers import PreTrainedTokenizerFast

from svrl_jax.arms import ARMS, ArmName
from svrl_jax.datasets import flags
from svrl_jax.datasets.flags.demonstrations import (
    CORRUPTED,
    SOUND,
    Corruption,
    Demonstrator,
)
from svrl_jax.datasets.flags.tools import flags_tools
from svrl_jax.imitation import demonstration_row
from svrl_jax.rollout import Tools
from svrl_jax.search.cache import cached_text
from svrl_jax.search.sqlite_store import SqliteStore
from verdict_jax.packing import PackedBatch, PictureBatch, pack_batch, pack_pictures
from verdict_jax.run_folder import open_run
from verdict_jax.supervised import Schedule, fit, init_with_heads, language_loss, vision_loss
from verdict_jax.vlm.config import Config, VisionConfig
from verdict_jax.vlm.images import ImageProcessor, ProcessedImage, load_image_processor
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.tokenizer import load_tokenizer

BUNDLED = Path(__file__).parent.parent / "svrl_jax" / "bundled" / "policy"

PIXELS = 64
"""Of a side of a picture."""

VISION = VisionConfig(
    depth=3,
    hidden_size=96,
    intermediate_size=256,
    num_heads=4,
    in_channels=3,
    patch_size=8,
    spatial_merge_size=2,
    temporal_patch_size=2,
    window_size=PIXELS,
    out_hidden_size=128,
    fullatt_block_indexes=(2,),
)

READING = Corruption(needless=0.7)
"""Of the second stage: what it knows is looked up too, for more to read."""

SHARES: Mapping[ArmName, float] = {
    "direct": 0.25,
    "rag": 0.08,
    "mmsearch-r1": 0.09,
    "mmsearch-r1++": 0.09,
    "query-align": 0.17,
    "full": 0.32,
}
"""Rows by arm, one for each kind of prompt; arms with the same prompt are the same here."""

FACTS = 16
"""About one flag, at most."""


@dataclass(frozen=True)
class Args:
    """Options of the training run."""

    vision_steps: int = 1500
    """Updates of the vision tower alone."""
    pictures: int = 48
    """Pictures of a batch of that stage."""
    reading_steps: int = 1500
    """Updates of the whole model on sound demonstrations."""
    policy_steps: int = 900
    """Updates on demonstrations of every arm, for each of the two models."""
    rows: int = 12
    """Flags of a batch of these stages."""
    width: int = 768
    """Tokens of a training row."""
    learning_rate: float = 1e-3
    """Of AdamW, at the plateau; half of it in the last stage."""
    auxiliary_weight: float = 0.1
    """Loss weight of the auxiliary head after the first stage."""
    seed: int = 0
    """Of parameters and data."""
    checkpoints: Path = Path("checkpoints/policy")
    """Where the run keeps its state; delete the folder to start anew."""
    out: Path = BUNDLED
    """Folder of the tokenizer files, which the base policy joins."""


@dataclass(frozen=True)
class Lessons:
    """What the batches of a run are drawn from.

    Attributes:
        world: of flags.
        facts: by country, those that may be taught.
        processor: of the model's pictures.
    """

    world: flags.World
    facts: tuple[tuple[flags.Fact, ...], ...]
    processor: ImageProcessor

    @staticmethod
    def of(world: flags.World, processor: ImageProcessor) -> Lessons:
        """All pairs but those held out."""
        facts: dict[str, list[flags.Fact]] = {country.name: [] for country in world.countries}
        for fact in world.facts:
            if flags.kind_of(world, fact) != "held_out":
                facts[fact.country].append(fact)
        return Lessons(world, tuple(map(tuple, facts.values())), processor)

    def flag(
        self, country: int, rng: np.random.Generator
    ) -> tuple[UInt8[np.ndarray, "64 64 3"], ProcessedImage, Int[np.ndarray, "tokens 1"]]:
        """A picture of a flag, as drawn and as the model reads it, with its label everywhere."""
        drawn = flags.draw(self.world.flags[country], flags.TRAINING, rng)
        picture = self.processor.process(Image.fromarray(drawn))
        tokens = len(picture.patches) // VISION.merge_unit
        return drawn, picture, np.full((tokens, 1), country, np.int32)


def picture_batch(config: Config, lessons: Lessons, args: Args, step: int) -> PictureBatch:
    """The data of one step of the first stage, a pure function of it."""
    rng = np.random.default_rng((args.seed, 1, step))
    countries = rng.integers(len(lessons.world.countries), size=args.pictures)
    drawn = [lessons.flag(int(country), rng) for country in countries]
    return pack_pictures(config, [p for _, p, _ in drawn], [labels for *_, labels in drawn])[0]


def demonstration_batch(
    config: Config,
    tokenizer: PreTrainedTokenizerFast,
    lessons: Lessons,
    demonstrator: Demonstrator,
    args: Args,
    stage: int,
    step: int,
) -> PackedBatch:
    """The data of one step of a later stage, a pure function of it.

    Args:
        config: the model.
        tokenizer: of the model.
        lessons: flags and facts.
        demonstrator: what is done about them.
        args: of the run.
        stage: its number.
        step: of the stage.
    """
    rng = np.random.default_rng((args.seed, stage, step))
    countries = [int(i) for i in rng.integers(len(lessons.world.countries), size=args.rows)]
    names = list(SHARES)
    arms = [ARMS[names[i]] for i in rng.choice(len(names), args.rows, p=list(SHARES.values()))]
    drawn = [lessons.flag(country, rng) for country in countries]
    batch, pictures = pack_pictures(
        config, [picture for _, picture, _ in drawn], [labels for *_, labels in drawn]
    )
    rows = []
    for country, arm, picture, (image, _, _) in zip(countries, arms, pictures, drawn, strict=True):
        facts = lessons.facts[country]
        # a row of direct answers holds many facts, one of searches few
        count = FACTS if not arm.text_searches else FACTS // 3
        order = rng.permutation(len(facts))[:count]
        shown = [demonstrator.demonstrate(facts[i], image, arm, rng) for i in order]
        pairs = [(one.question, one.trajectory) for one in shown]
        rows.append(demonstration_row(tokenizer, config, arm, picture, pairs, args.width))
    return pack_batch(batch, rows, args.width, config.pad_token_id)


def train(args: Args) -> None:
    """All stages; writes the models."""
    world = flags.load()
    classes = (len(world.countries),)
    config = build_config(args.out, VISION, layers=4, intermediate=384, positions=1024)
    key = jax.random.key(args.seed)
    config, params = grow(config, init_with_heads(config, classes, key), key)
    write_preprocessor(args.out, VISION, PIXELS * PIXELS, PIXELS * PIXELS)
    tokenizer = load_tokenizer(args.out)
    lessons = Lessons.of(world, load_image_processor(args.out, config.vision))
    plain = flags_tools(world, tokenizer)
    # demonstrations search the same things again and again
    store = SqliteStore(args.checkpoints / "searches.sqlite")
    tools = Tools(cached_text(plain.text, store), plain.image)
    params = fit(
        vision_loss(config, classes),
        params,
        Schedule(args.vision_steps, args.learning_rate),
        functools.partial(picture_batch, config, lessons, args),
        args.checkpoints / "vision",
    )

    def taught(
        params: Params, corruption: Corruption, steps: int, rate: float, stage: int, name: str
    ) -> Params:
        return fit(
            language_loss(config, classes, args.auxiliary_weight),
            # a stage gives its parameters' buffers away, and two begin with the same ones
            jax.tree.map(jnp.copy, params),
            Schedule(steps, rate),
            functools.partial(
                demonstration_batch,
                config,
                tokenizer,
                lessons,
                Demonstrator(world, tools, corruption),
                args,
                stage,
            ),
            args.checkpoints / name,
        )

    params = taught(params, READING, args.reading_steps, args.learning_rate, 2, "reading")
    half = args.learning_rate / 2
    base = taught(params, CORRUPTED, args.policy_steps, half, 3, "base")
    ceiling = taught(params, SOUND, args.policy_steps, half, 3, "ceiling")
    write_model(args.out, args.checkpoints / "ceiling_model", config, ceiling, jnp.bfloat16)
    write_model(args.out, args.out, config, base, jnp.bfloat16)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    count = sum(leaf.size for leaf in jax.tree.leaves(base))
    print(f"{args.out}: {count:,} parameters with the head, {size / 1e6:.2f} MB")


def main(args: Args) -> None:
    own = asdict(args)
    settings = {name: own[name] for name in own if name not in ("checkpoints", "out")}
    # a killed run must not go on with other settings
    with open_run(args.checkpoints, settings):
        train(args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
