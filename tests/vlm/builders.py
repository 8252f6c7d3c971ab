"""Tiny random checkpoints, prompts for them, and the logits that both implementations give.

torch and transformers are the oracle. The same cases serve the tests and scripts/bench/parity.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Float, Int32
from PIL import Image
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.initialization import no_init_weights
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from verdict_jax.vlm import model, sampling
from verdict_jax.vlm.config import Config, load_config
from verdict_jax.vlm.images import load_image_processor
from verdict_jax.vlm.inputs import Array, ModelInputs, PatchBatch
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.rows import TokenRow, pack_tokens, token_row
from verdict_jax.vlm.weights import load_params
from verdict_jax.vlm.windows import num_windows, pack_patches

TOLERANCE = 1e-4
"""Largest difference of fp32 logits between the two implementations."""

PAD, EOS, OTHER_EOS, PLAIN, IMAGE, VIDEO, VISION_START, VISION_END = 0, 1, 2, 3, 310, 311, 312, 313
"""Ids of the tiny vocabularies; PLAIN ... IMAGE - 1 are ordinary tokens."""

WIDTH, SLOTS, IMAGES, WINDOWS = 46, 64, 4, 6
"""One bucket for all cases, so that each function compiles once a checkpoint. The longest prompt
leaves 7 tokens of the width."""

EMBEDDING = "model.language_model.embed_tokens.weight"

encode = jax.jit(model.encode_images, static_argnums=0)
forward = jax.jit(model.forward, static_argnums=0, static_argnames="remat")
prefill = jax.jit(model.prefill, static_argnums=(0, 5))
extend = jax.jit(model.extend, static_argnums=0, static_argnames="unroll")
decode = jax.jit(sampling.decode, static_argnums=0, static_argnames=("top_k", "max_tokens"))

Logits = list[np.ndarray]
"""Per prompt [time, vocab]."""


@dataclass(frozen=True)
class Checkpoint:
    """A published folder, as we read it."""

    folder: Path
    config: Config
    params: Params


@dataclass(frozen=True)
class Pair(Checkpoint):
    """The same weights in both implementations."""

    reference: Qwen2_5_VLForConditionalGeneration


@dataclass(frozen=True)
class Prompt:
    """Token ids with one placeholder a picture."""

    tokens: Int32[np.ndarray, "time"]
    pictures: tuple[Image.Image, ...] = ()


@dataclass(frozen=True)
class Batch:
    """Prompts as they enter our model."""

    rows: tuple[TokenRow, ...]
    inputs: ModelInputs
    patches: PatchBatch | None
    next_position: Int32[np.ndarray, "batch"]


@dataclass(frozen=True)
class Parity:
    """Largest difference of logits, and their standard deviation (a scale to read it by)."""

    difference: float
    spread: float


def untied_config() -> Qwen2_5_VLConfig:
    """Full attention at regular depths, windows of 2 x 2 merge units, two query heads a group."""
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 3, 3],
            },
            "rms_norm_eps": 1e-6,
            "eos_token_id": [EOS, OTHER_EOS],
            "pad_token_id": PAD,
            "bos_token_id": None,
        },
        vision_config={
            "depth": 4,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "window_size": 16,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1, 3],
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=False,
    )


def tied_config() -> Qwen2_5_VLConfig:
    """Full attention at irregular depths, windows of 3 x 3 merge units, groups of three heads."""
    config = untied_config().to_dict()
    config["tie_word_embeddings"] = True
    config["text_config"] |= {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 1]},
        "layer_types": None,
    }
    config["vision_config"] |= {
        "depth": 5,
        "hidden_size": 24,
        "window_size": 24,
        "out_hidden_size": 48,
        "fullatt_block_indexes": [0, 3, 4],
    }
    return Qwen2_5_VLConfig(**config)


def published_3b_config() -> Qwen2_5_VLConfig:
    """The shapes of Qwen2.5-VL-3B-Instruct with 2 layers in each tower, the second vision block
    with full attention."""
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 2,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [16, 24, 24],
            },
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 128000,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "fullatt_block_indexes": [1],
        },
        tie_word_embeddings=True,
    )


def make_reference(config: Qwen2_5_VLConfig, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """Random weights that keep activations near unit scale and logits well spread.

    The published initialisation (std 0.02) gives such flat logits that no tolerance would tell a
    wrong model from a right one. The values are representable in bfloat16, so that models of both
    types hold the same weights.
    """
    with no_init_weights():
        reference = Qwen2_5_VLForConditionalGeneration(config)
    reference.tie_weights()
    # Large tensors repeat one block of a prime length: as good for parity, and made at once.
    block = torch.empty(1_000_003).normal_(generator=torch.Generator().manual_seed(seed))
    offset = 0
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if parameter.ndim > 1:
                gain = 2.0 if name in ("lm_head.weight", EMBEDDING) else 1.25
                mean, std = 0.0, gain * parameter[0].numel() ** -0.5
            else:
                mean, std = (1.0, 0.2) if "norm" in name or "ln_q" in name else (0.0, 0.3)
            noise = (mean + std * block.roll(offset)).bfloat16()
            for part in parameter.view(-1).split(len(noise)):
                part.copy_(noise[: len(part)])
            offset -= parameter.numel()
    return reference.eval()


def in_bfloat16(pair: Pair) -> Pair:
    """The same weights: they are representable."""
    return replace(pair, params=load_params(pair.folder, pair.config, jnp.bfloat16))


def write_preprocessor(folder: Path, config: Qwen2_5_VLConfig) -> None:
    """The image settings of a published folder; a merge unit is the smallest picture."""
    vision = config.vision_config
    settings = {
        "min_pixels": (vision.patch_size * vision.spatial_merge_size) ** 2,
        "max_pixels": 128 * 128,
        "patch_size": vision.patch_size,
        "merge_size": vision.spatial_merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")


def build(folder: Path, config: Qwen2_5_VLConfig, seed: int) -> Pair:
    """Written by transformers, read by us."""
    reference = make_reference(config, seed)
    reference.save_pretrained(folder)
    write_preprocessor(folder, config)
    ours = load_config(folder)
    return Pair(folder, ours, load_params(folder, ours), reference)


def picture(rng: np.random.Generator, height: int, width: int) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))


def prompt(rng: np.random.Generator, *parts: int | tuple[int, int]) -> Prompt:
    """Runs of that many random tokens, and pictures of (height, width), in order."""
    tokens: list[int] = []
    pictures = []
    for part in parts:
        if isinstance(part, tuple):
            tokens += [VISION_START, IMAGE, VISION_END]
            pictures.append(picture(rng, *part))
        else:
            tokens += rng.integers(PLAIN, IMAGE, part).tolist()
    return Prompt(np.array(tokens, np.int32), tuple(pictures))


def pack(
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    width: int = WIDTH,
    num_rows: int = 4,
    images: int = IMAGES,
    windows: int = WINDOWS,
    side: str = "right",
) -> Batch:
    """Prompts in one bucket."""
    config = checkpoint.config
    processor = load_image_processor(checkpoint.folder, config.vision)
    processed = [processor.process(image) for prompt in prompts for image in prompt.pictures]
    patches, pictures = pack_patches(processed, config.vision, images, windows)
    rows, at = [], 0
    for prompt in prompts:
        end = at + len(prompt.pictures)
        rows.append(token_row(prompt.tokens, config, pictures[at:end]))
        at = end
    inputs = pack_tokens(rows, num_rows, width, PAD, "left" if side == "left" else "right")
    next_position = np.zeros(num_rows, np.int32)
    next_position[: len(rows)] = [row.next_position for row in rows]
    return Batch(tuple(rows), inputs, patches if processed else None, next_position)


def windows_needed(checkpoint: Checkpoint, prompt: Prompt) -> int:
    """Of its largest picture."""
    vision = checkpoint.config.vision
    processor = load_image_processor(checkpoint.folder, vision)
    return max(num_windows(processor.process(image).grid, vision) for image in prompt.pictures)


def our_features(checkpoint: Checkpoint, batch: Batch) -> jax.Array | None:
    if batch.patches is None:
        return None
    return encode(checkpoint.config, checkpoint.params, batch.patches)


def split_rows(logits: Float[Array, "batch time vocab"], batch: Batch) -> Logits:
    """The real tokens' logits of each prompt."""
    values = np.asarray(logits)
    return [values[row][batch.inputs.mask[row]] for row in range(len(batch.rows))]


def our_logits(checkpoint: Checkpoint, batch: Batch) -> Logits:
    features = our_features(checkpoint, batch)
    return split_rows(forward(checkpoint.config, checkpoint.params, batch.inputs, features), batch)


def reference_inputs(
    reference: Qwen2_5_VLForConditionalGeneration, prompts: Sequence[Prompt]
) -> dict[str, torch.Tensor | None]:
    """Left-padded, with pictures from transformers' own processor."""
    vision = reference.config.vision_config
    processor = Qwen2VLImageProcessorPil(
        min_pixels=(vision.patch_size * vision.spatial_merge_size) ** 2,
        max_pixels=128 * 128,
        patch_size=vision.patch_size,
        merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
    )
    pictures = [image for prompt in prompts for image in prompt.pictures]
    pixels = grids = None
    counts = iter(())
    if pictures:
        processed = processor(pictures, return_tensors="pt")
        pixels, grids = processed["pixel_values"], processed["image_grid_thw"]
        counts = iter((grids.prod(-1) // vision.spatial_merge_size**2).tolist())
    image_id = reference.config.image_token_id
    rows = [
        [
            token
            for given in prompt.tokens.tolist()
            for token in [given] * (next(counts) if given == image_id else 1)
        ]
        for prompt in prompts
    ]
    width = max(map(len, rows))
    ids = torch.tensor([[PAD] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "pixel_values": pixels,
        "image_grid_thw": grids,
        "mm_token_type_ids": (ids == image_id).int(),
    }


@torch.no_grad()
def reference_logits(
    reference: Qwen2_5_VLForConditionalGeneration, prompts: Sequence[Prompt]
) -> Logits:
    given = reference_inputs(reference, prompts)
    logits = reference(**given, use_cache=False).logits.float().numpy()
    mask = given["attention_mask"]
    assert mask is not None
    return [row[real] for row, real in zip(logits, mask.bool().numpy(), strict=True)]


def compare(ours: Logits, reference: Logits) -> Parity:
    assert [x.shape for x in ours] == [x.shape for x in reference]
    difference = max(float(np.abs(x - y).max()) for x, y in zip(ours, reference, strict=True))
    return Parity(difference, float(np.concatenate(reference).std()))


def text_prompts() -> list[Prompt]:
    rng = np.random.default_rng(1)
    return [prompt(rng, 21), prompt(rng, 7)]


def one_image() -> list[Prompt]:
    """5 x 3 merge units: a multiple of no window."""
    return [prompt(np.random.default_rng(2), 6, (40, 24), 5)]


def two_images() -> list[Prompt]:
    """4 x 2 merge units (whole windows of 2 x 2), then 3 x 5."""
    return [prompt(np.random.default_rng(3), 3, (32, 16), 4, (24, 40), 5)]


def mixed_prompts() -> list[Prompt]:
    """{image, text, two images}: the text row must not inherit its neighbours' positions."""
    rng = np.random.default_rng(4)
    return [prompt(rng, 4, (24, 32), 6), prompt(rng, 9), *two_images()]


def full_forward(make: Callable[[], list[Prompt]], side: str) -> Callable[[Pair], Parity]:
    def case(pair: Pair) -> Parity:
        prompts = make()
        batch = pack(pair, prompts, side=side)
        return compare(our_logits(pair, batch), reference_logits(pair.reference, prompts))

    return case


def cached_logits(checkpoint: Checkpoint, batch: Batch, decoded: int) -> Logits:
    """Logits of the last `decoded` + 1 tokens: all before them prefilled, then one by one."""
    features = our_features(checkpoint, batch)
    lengths = [len(row.tokens) for row in batch.rows]
    inputs = batch.inputs
    tail = np.zeros_like(inputs.mask)
    next_position = batch.next_position.copy()
    next_position[: len(lengths)] -= decoded
    for row, length in enumerate(lengths):
        tail[row, length - decoded : length] = True
    short = ModelInputs(inputs.tokens, inputs.positions, inputs.mask & ~tail, inputs.feature_ids)
    config, params = checkpoint.config, checkpoint.params
    logits, cache = prefill(config, params, short, next_position, features, SLOTS)
    steps = [np.asarray(logits)]
    real = np.arange(len(inputs.mask))[:, None] < len(lengths)
    for step in range(decoded):
        tokens = np.zeros((len(inputs.mask), 1), np.int32)
        for row, length in enumerate(lengths):
            tokens[row, 0] = inputs.tokens[row, length - decoded + step]
        logits, cache = extend(config, params, cache, tokens, real)
        steps.append(np.asarray(logits))
    return [np.stack([step[row] for step in steps]) for row in range(len(lengths))]


def cached_decode(pair: Pair) -> Parity:
    """Right-padded prompts of pictures and text; the last four tokens go through the cache."""
    prompts = mixed_prompts()
    ours = cached_logits(pair, pack(pair, prompts), decoded=4)
    return compare(ours, [row[-5:] for row in reference_logits(pair.reference, prompts)])


CASES: dict[str, Callable[[Pair], Parity]] = {
    "text only": full_forward(text_prompts, "right"),
    "one image": full_forward(one_image, "right"),
    "two images of different sizes": full_forward(two_images, "right"),
    "mixed batch, left-padded": full_forward(mixed_prompts, "left"),
    "mixed batch, right-padded": full_forward(mixed_prompts, "right"),
    "prefill + cached decode": cached_decode,
}


def published_shapes(folder: Path) -> dict[str, Parity]:
    """A picture of 2 windows, one of less than a window, and text, through the 3B shapes.

    "every vision block windowed" is no parity: it shows that these pictures tell full attention
    from windowed. The oracle is freed before our weights are read, which halves the memory.
    """
    hf = published_3b_config()
    reference = make_reference(hf, seed=5)
    rng = np.random.default_rng(5)
    prompts = []
    for size in ((140, 112), (84, 56), None):
        opening = [] if size is None else [hf.vision_start_token_id, hf.image_token_id]
        opening += [] if size is None else [hf.vision_end_token_id]
        tokens = np.array([*opening, 785, 2168, 4933], np.int32)
        prompts.append(Prompt(tokens, () if size is None else (picture(rng, *size),)))
    expected = reference_logits(reference, prompts)
    reference.bfloat16().save_pretrained(folder)
    del reference
    write_preprocessor(folder, hf)
    config = load_config(folder)
    checkpoint = Checkpoint(folder, config, load_params(folder, config, jnp.float32))
    left, right = (
        pack(checkpoint, prompts, width=32, num_rows=3, images=2, windows=2, side=side)
        for side in ("left", "right")
    )
    windowed = replace(config, vision=replace(config.vision, fullatt_block_indexes=()))
    # the decoder is compiled once: only the features come from the wrong tower
    features = our_features(replace(checkpoint, config=windowed), left)
    wrong = split_rows(forward(config, checkpoint.params, left.inputs, features), left)
    tails = [row[-2:] for row in expected]
    return {
        "left-padded": compare(our_logits(checkpoint, left), expected),
        "prefill + cached decode": compare(cached_logits(checkpoint, right, decoded=1), tails),
        "every vision block windowed": compare(wrong, expected),
    }
