"""A second call of the same bucket compiles nothing (known-fault V3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest

from verdict_jax.vlm import model, sampling
from verdict_jax.vlm.buckets import bucket
from verdict_jax.vlm.images import load_image_processor, num_windows, pack_patches
from vlm.builders import (
    IMAGES,
    SLOTS,
    WINDOWS,
    Pair,
    Prompt,
    mixed_prompts,
    our_features,
    pack,
    picture,
    prefill,
    prompt,
)

COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Programs that XLA has compiled since the last call."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        count, self.count = self.count, 0
        return count


@pytest.fixture
def compilations() -> Iterator[Compilations]:
    counter = Compilations()
    listening = [True]

    # JAX has no public way to take back one listener.
    def listen(event: str, duration: float, **_: str | int) -> None:
        if listening[0] and event == COMPILED:
            counter.count += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counter
    listening[0] = False


def test_the_counter_counts(compilations: Compilations) -> None:
    double = jax.jit(lambda x: x * 2 + 1)
    double(np.zeros(3, np.float32))
    double(np.ones(3, np.float32))
    assert compilations() == 1
    double(np.zeros(4, np.float32))
    assert compilations() == 1


def test_pictures_of_any_size(untied: Pair, compilations: Compilations) -> None:
    rng = np.random.default_rng(0)
    sizes = {tuple(int(side) for side in rng.integers(4, 60, 2)) for _ in range(20)}
    assert len(sizes) == 20
    vision = untied.config.vision
    processor = load_image_processor(untied.folder, vision)
    params = untied.params["vision"]
    encode = jax.jit(
        lambda params, patches: model.encode_images(untied.config, {"vision": params}, patches)
    )
    buckets, grids = set(), set()
    for again in range(2):
        for height, width in sorted(sizes):
            image = processor.process(picture(rng, height, width))
            windows = bucket(num_windows(image.grid, vision), minimum=8)
            buckets.add(windows)
            grids.add(image.grid)
            patches, _ = pack_patches([image], vision, 1, windows)
            encode(params, patches)
        compiled = compilations()
        assert compiled == (0 if again else len(buckets))
    assert len(grids) > 4 * len(buckets) >= 8


def test_prompts_of_any_length(untied: Pair, compilations: Compilations) -> None:
    """Reading 20 prompts and extending them: one program a bucket of widths."""
    rng = np.random.default_rng(1)
    prefill = jax.jit(lambda *args: model.prefill(untied.config, *args, None, SLOTS))
    extend = jax.jit(lambda *args: model.extend(untied.config, *args))
    lengths = rng.permutation(np.arange(5, 45))[:20]
    buckets = set()
    for again in range(2):
        for length in lengths:
            width = bucket(int(length), minimum=32)
            buckets.add(width)
            batch = pack(untied, [prompt(rng, int(length))], width=width, num_rows=1)
            _, cache = prefill(untied.params, batch.inputs, batch.next_position)
            tokens = rng.integers(3, 300, (1, 1)).astype(np.int32)
            extend(untied.params, cache, tokens, np.ones((1, 1), bool))
        # the caches have one shape, whatever the prompt's width
        assert compilations() == (0 if again else len(buckets) + 1)
    assert buckets == {32, 48}


def test_sampling_settings_are_no_new_program(untied: Pair, compilations: Compilations) -> None:
    """Keys, temperature, top-p, masks and the delimiter's flag are data."""
    run = jax.jit(
        lambda *args: sampling.decode(untied.config, untied.params, *args, top_k=0, max_tokens=3)
    )
    batch = pack(untied, [Prompt(np.array([7, 8], np.int32))], num_rows=4)
    none = np.zeros(320, bool)
    masks = sampling.TokenMasks(none, none, none, none, none)
    logits, cache = prefill(
        untied.config, untied.params, batch.inputs, batch.next_position, None, SLOTS
    )
    keys = [jax.random.split(jax.random.key(seed), 4) for seed in range(3)]
    active = np.arange(4) < 2
    compilations()
    for index, (temperature, top_p) in enumerate(((0.0, 1.0), (0.8, 0.5), (1.3, 0.9))):
        stops = replace(masks, stop=np.arange(320) % (index + 2) == 0)
        settings = (np.asarray(index == 1), np.float32(temperature), np.float32(top_p))
        run(cache, logits, keys[index], stops, active, *settings)
        assert compilations() == (0 if index else 1)


def test_a_batch_of_other_pictures(untied: Pair, compilations: Compilations) -> None:
    """The whole way, in one bucket: other pictures, other rows, no new program."""
    compiled = []
    for prompts in (mixed_prompts(), mixed_prompts()[::-1], mixed_prompts()[:1]):
        batch = pack(untied, prompts, images=IMAGES, windows=WINDOWS)
        features = our_features(untied, batch)
        prefill(untied.config, untied.params, batch.inputs, batch.next_position, features, SLOTS)
        compiled.append(compilations())
    assert compiled[1:] == [0, 0]
