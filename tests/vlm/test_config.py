"""Both published layouts of config.json, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from verdict_jax.vlm.config import (
    Config,
    ConfigError,
    TextConfig,
    VisionConfig,
    config_from_json,
    config_to_json,
    load_config,
)
from vlm.builders import EOS, OTHER_EOS, PAD, Pair

Table = dict[str, object]


def published() -> Table:
    """config.json of Qwen2.5-VL-3B-Instruct: text fields at the root."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "vision_token_id": 151654,
        "image_token_id": 151655,
        "video_token_id": 151656,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 11008,
        "max_position_embeddings": 128000,
        "max_window_layers": 70,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.41.2",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_config": {
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "in_chans": 3,
            "out_hidden_size": 2048,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "tokens_per_second": 2,
            "temporal_patch_size": 2,
        },
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vocab_size": 151936,
    }


EXPECTED = Config(
    vision=VisionConfig(
        depth=32,
        hidden_size=1280,
        intermediate_size=3420,
        num_heads=16,
        in_channels=3,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=2,
        window_size=112,
        out_hidden_size=2048,
        fullatt_block_indexes=(7, 15, 23, 31),
    ),
    text=TextConfig(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=11008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        mrope_section=(16, 24, 24),
        tie_word_embeddings=True,
        max_position_embeddings=128000,
    ),
    image_token_id=151655,
    video_token_id=151656,
    vision_start_token_id=151652,
    vision_end_token_id=151653,
    eos_token_ids=(151645,),
    pad_token_id=151645,
)


def write(folder: Path, table: object, name: str = "config.json") -> Path:
    (folder / name).write_text(json.dumps(table), encoding="utf-8")
    return folder


def test_the_published_layout(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, published())) == EXPECTED
    vision = EXPECTED.vision
    assert (vision.head_dim, vision.patch_dim, vision.merge_unit) == (80, 1176, 4)
    assert (vision.window_units, vision.window_slots) == (4, 64)
    assert EXPECTED.text.head_dim == 128


def test_both_spellings_of_the_channels() -> None:
    for key in ("in_chans", "in_channels"):
        table = published()
        vision = table["vision_config"]
        assert isinstance(vision, dict)
        del vision["in_chans"]
        vision[key] = 1
        assert config_from_json(table, "c").vision.in_channels == 1


def test_the_layout_of_transformers_5(untied: Pair, tied: Pair) -> None:
    for pair in (untied, tied):
        table = json.loads((pair.folder / "config.json").read_text())
        assert "text_config" in table and "rope_scaling" not in table["text_config"]
        text = pair.reference.config.text_config
        assert pair.config.text.hidden_size == text.hidden_size
        assert pair.config.text.rope_theta == text.rope_parameters["rope_theta"]
        assert pair.config.text.rms_norm_eps == text.rms_norm_eps
        assert list(pair.config.text.mrope_section) == text.rope_parameters["mrope_section"]
        assert pair.config.eos_token_ids == (EOS, OTHER_EOS)
        assert pair.config.pad_token_id == PAD
    assert (untied.config.text.tie_word_embeddings, tied.config.text.tie_word_embeddings) == (
        False,
        True,
    )


def test_tying_written_inside_the_text_config() -> None:
    table = config_to_json(EXPECTED, "float32")
    text = table["text_config"]
    assert isinstance(text, dict)
    text["tie_word_embeddings"] = table.pop("tie_word_embeddings")
    assert config_from_json(table, "c") == EXPECTED


@pytest.mark.parametrize("tie", [True, False])
def test_written_and_read_back(tie: bool, tmp_path: Path) -> None:
    config = replace(
        EXPECTED,
        text=replace(EXPECTED.text, tie_word_embeddings=tie, num_key_value_heads=4, rope_theta=5e5),
        vision=replace(EXPECTED.vision, in_channels=1, fullatt_block_indexes=(3,), patch_size=7),
        eos_token_ids=(4, 5),
        pad_token_id=6,
        image_token_id=7,
    )
    assert load_config(write(tmp_path, config_to_json(config, "bfloat16"))) == config


def test_only_stop_ids_come_from_the_generation_config(tmp_path: Path) -> None:
    """Known-fault V9: its sampling settings apply nowhere."""
    write(tmp_path, published())
    generation = {
        "do_sample": True,
        "eos_token_id": [151645, 151643],
        "pad_token_id": 151643,
        "repetition_penalty": 1.05,
        "temperature": 0.1,
        "top_k": 1,
        "top_p": 0.001,
    }
    write(tmp_path, generation, "generation_config.json")
    expected = replace(EXPECTED, eos_token_ids=(151645, 151643), pad_token_id=151643)
    assert load_config(tmp_path) == expected


def test_absent_optional_fields() -> None:
    table = published()
    for key in ("eos_token_id", "image_token_id", "num_key_value_heads", "use_sliding_window"):
        del table[key]
    table["pad_token_id"] = None
    config = config_from_json(table, "c")
    assert config.eos_token_ids == (151645,) and config.pad_token_id == 151645
    assert config.image_token_id == 151655
    assert config.text.num_key_value_heads == 16


def at_root(key: str, value: object) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        table[key] = value

    return change


def in_vision(key: str, value: object) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        vision = table["vision_config"]
        assert isinstance(vision, dict)
        vision[key] = value

    return change


def another_architecture(table: Table) -> None:
    table["model_type"] = "qwen2_vl"
    table["architectures"] = ["Qwen2VLForConditionalGeneration"]


REFUSED: list[tuple[Callable[[Table], None], str]] = [
    (another_architecture, "Qwen2VLForConditionalGeneration.*is not supported"),
    (at_root("hidden_act", "gelu"), "hidden_act = 'gelu' is not supported"),
    (in_vision("hidden_act", "quick_gelu"), "vision_config: hidden_act = 'quick_gelu'"),
    (at_root("use_sliding_window", True), "use_sliding_window is not supported"),
    (
        at_root("rope_scaling", {"type": "yarn", "mrope_section": [16, 24, 24]}),
        "rope type 'yarn' is not supported",
    ),
    (at_root("rope_scaling", None), "'rope_scaling' is missing"),
    (at_root("rope_scaling", {"type": "mrope"}), "'mrope_section' is missing"),
    (
        at_root("rope_scaling", {"type": "mrope", "mrope_section": [16, 24, 25]}),
        "mrope_section .*16, 24, 25.*64",
    ),
    (at_root("rope_scaling", {"type": "mrope", "mrope_section": [32, 32]}), "three sizes"),
    (at_root("vocab_size", None), "'vocab_size' is missing"),
    (at_root("hidden_size", "wide"), "'hidden_size' must be an integer, got 'wide'"),
    (at_root("num_hidden_layers", True), "'num_hidden_layers' must be an integer"),
    (at_root("rms_norm_eps", "small"), "'rms_norm_eps' must be a number"),
    (at_root("num_key_value_heads", 3), "num_attention_heads must divide by num_key_value_heads"),
    (at_root("eos_token_id", ["stop"]), "'eos_token_id' must hold integers"),
    (at_root("eos_token_id", []), "'eos_token_id' must name at least one id"),
    (at_root("eos_token_id", [151645, 151936]), "eos_token_id 151936 is not one of the 151936 ids"),
    (at_root("eos_token_id", -1), "eos_token_id -1 is not one of"),
    (at_root("pad_token_id", 151936), "pad_token_id 151936 is not one of"),
    (at_root("pad_token_id", "pad"), "'pad_token_id' must be an integer, got 'pad'"),
    (at_root("pad_token_id", -1), "pad_token_id -1 is not one of"),
    (at_root("image_token_id", 151936), "image_token_id 151936 is not one of"),
    (at_root("vocab_size", 151656), "video_token_id 151656 is not one of the 151656 ids"),
    (at_root("vision_start_token_id", 999999), "vision_start_token_id 999999 is not one of"),
    (at_root("vision_end_token_id", 999999), "vision_end_token_id 999999 is not one of"),
    (at_root("vision_config", None), "'vision_config' is missing"),
    (at_root("vision_config", [1]), "'vision_config' must be an object"),
    (in_vision("window_size", 14), "window_size 14 is under 28"),
    (in_vision("num_heads", 7), "hidden_size / num_heads"),
    (in_vision("depth", None), "'depth' is missing"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_the_port_does_not_run_is_refused(
    change: Callable[[Table], None], message: str, tmp_path: Path
) -> None:
    table = published()
    change(table)
    with pytest.raises(ConfigError, match=rf"config\.json.*{message}"):
        load_config(write(tmp_path, table))


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: no such file"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json: not a JSON file"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match=r"config\.json: expected a JSON object"):
        load_config(write(tmp_path, [1]))
