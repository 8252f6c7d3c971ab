"""A second call of the same bucket compiles nothing (known-fault V3)."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm import prefixes, sampling
from verdict_jax.vlm.checkpoint import VLM
from verdict_jax.vlm.images import load_image_processor
from verdict_jax.vlm.rows import token_row
from vlm.builders import (
    IMAGES,
    OTHER_EOS,
    SLOTS,
    WINDOWS,
    Pair,
    Prompt,
    mixed_prompts,
    our_features,
    pack,
    picture,
    prefill,
)
from vlm.compilations import compilations


@pytest.fixture(scope="module")
def vlm(untied: Pair) -> VLM:
    """A config of this module alone, so that no other test has compiled its programs."""
    config = replace(untied.config, eos_token_ids=(OTHER_EOS,))
    none = np.zeros(config.text.vocab_size, bool)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()))
    processor = load_image_processor(untied.folder, config.vision)
    masks = sampling.TokenMasks(none, none, none, none, none)
    return VLM(config, untied.params, tokenizer, processor, masks, "untied")


def test_the_counter_counts() -> None:
    double = jax.jit(lambda x: x * 2 + 1)
    with compilations() as compiled:
        double(np.zeros(3, np.float32))
        double(np.ones(3, np.float32))
        assert len(compiled) == 1
        double(np.zeros(4, np.float32))
        assert len(compiled) == 2
    double(np.zeros(5, np.float32))
    assert len(compiled) == 2


def test_pictures_of_any_size(vlm: VLM) -> None:
    """Each picture through the package's own way: one program a bucket of windows."""
    rng = np.random.default_rng(0)
    sizes = {tuple(int(side) for side in rng.integers(4, 60, 2)) for _ in range(20)}
    assert len(sizes) == 20
    buckets, grids = set(), set()
    for again in range(2):
        with compilations() as compiled:
            for height, width in sorted(sizes):
                # random pixels: the memo never knows the picture
                encoded = vlm.encode([[picture(rng, height, width)]])
                assert encoded.features is not None
                grids.add(encoded.rows[0][0].grid)
                buckets.add(encoded.features.shape)
        assert len(compiled) == (0 if again else len(buckets))
    assert len(grids) > 2 * len(buckets)


def test_prompts_of_any_length(vlm: VLM) -> None:
    """Reading 20 prompts and extending them: one program a bucket of widths."""
    rng = np.random.default_rng(1)
    lengths = rng.permutation(np.arange(5, 45))[:20].tolist()
    read, extended = set(), set()
    for again in range(2):
        with compilations() as compiled:
            for length in lengths:
                row = token_row(rng.integers(3, 300, length, np.int32), vlm.config, [])
                state = prefixes.read_prompts(vlm, [row], 1, None)
                longer = prefixes.append(vlm, state, [rng.integers(3, 300, 5, np.int32)])
                read.add(state.cache.slots)
                extended.add((state.cache.slots, longer.cache.slots))
        assert len(compiled) == (0 if again else len(read) + len(extended))
    assert len(read) == 4 and len(extended) <= 2 * len(read)


def test_sampling_settings_are_no_new_program(untied: Pair) -> None:
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
    for index, (temperature, top_p) in enumerate(((0.0, 1.0), (0.8, 0.5), (1.3, 0.9))):
        stops = replace(masks, stop=np.arange(320) % (index + 2) == 0)
        settings = (np.asarray(index == 1), np.float32(temperature), np.float32(top_p))
        with compilations() as compiled:
            run(cache, logits, keys[index], stops, active, *settings)
        assert len(compiled) == (0 if index else 1)


def test_a_batch_of_other_pictures(untied: Pair) -> None:
    """The whole way, in one bucket: other pictures, other rows, no new program."""

    def read(prompts: list[Prompt]) -> None:
        batch = pack(untied, prompts, images=IMAGES, windows=WINDOWS)
        features = our_features(untied, batch)
        prefill(untied.config, untied.params, batch.inputs, batch.next_position, features, SLOTS)

    read(mixed_prompts())
    with compilations() as compiled:
        read(mixed_prompts()[::-1])
        read(mixed_prompts()[:1])
    assert not compiled
