"""Frozen model configurations, read from a published config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

Json = object
"""A parsed JSON value: readers narrow it (a recursive alias is beyond run-time type checkers)."""

ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"


class ConfigError(ValueError):
    """A config.json that this port cannot run; the message names the file, field and reason."""


@dataclass(frozen=True)
class VisionConfig:
    """The vision encoder: windowed blocks, a few of full attention, then the patch merger.

    Attributes:
        depth: blocks.
        hidden_size: width of the blocks.
        intermediate_size: inner width of their gated MLPs.
        num_heads: attention heads.
        in_channels: of a picture.
        patch_size: side of a patch in pixels.
        spatial_merge_size: side of a merge unit in patches; one unit becomes one token.
        temporal_patch_size: frames of a patch; a still picture is repeated to fill them.
        window_size: side of an attention window in pixels.
        out_hidden_size: width of the merged tokens, which is the decoder's.
        fullatt_block_indexes: the blocks that attend over the whole picture.
    """

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    in_channels: int
    patch_size: int
    spatial_merge_size: int
    temporal_patch_size: int
    window_size: int
    out_hidden_size: int
    fullatt_block_indexes: tuple[int, ...]

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_dim(self) -> int:
        """Pixels of a flattened patch: channels x time x rows x columns."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def merge_unit(self) -> int:
        """Patches that the merger joins into one token."""
        return self.spatial_merge_size**2

    @property
    def window_units(self) -> int:
        """Side of an attention window in merge units."""
        return self.window_size // self.spatial_merge_size // self.patch_size

    @property
    def window_slots(self) -> int:
        """Patches in a full window."""
        return self.window_units**2 * self.merge_unit


@dataclass(frozen=True)
class TextConfig:
    """The text decoder: Qwen2 blocks with grouped-query attention and M-RoPE.

    Attributes:
        vocab_size: rows of the embedding; a tokenizer may have fewer ids.
        hidden_size: width of the blocks.
        intermediate_size: inner width of their gated MLPs.
        num_hidden_layers: blocks.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads, each shared by a group of query heads.
        rms_norm_eps: added to the mean square in every norm.
        rope_theta: base of the rotary frequencies.
        mrope_section: frequencies that turn with the temporal, the height and the width position;
            they sum to half the head size.
        tie_word_embeddings: the head is the embedding.
        max_position_embeddings: most tokens of a prompt.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int]
    tie_word_embeddings: bool
    max_position_embeddings: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class Config:
    """A Qwen2.5-VL model: both towers and the ids of its markers, all within the vocabulary.

    Attributes:
        vision: the vision encoder.
        text: the text decoder.
        image_token_id: placeholder of an image token.
        video_token_id: placeholder of a video token, never written here.
        vision_start_token_id: opens a picture in a prompt.
        vision_end_token_id: closes it.
        eos_token_ids: end a chain, at least one; the first is what training writes.
        pad_token_id: fills rows; it is masked wherever it stands.
    """

    vision: VisionConfig
    text: TextConfig
    image_token_id: int
    video_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int


class _Fields:
    """Typed look-ups in one JSON object; an absent or ill-typed field names itself."""

    def __init__(self, name: str, table: Mapping[str, Json]) -> None:
        self.name, self.table = name, table

    def _get(self, key: str, default: Json) -> Json:
        value = self.table.get(key, default)
        if value is None:
            raise ConfigError(f"{self.name}: field {key!r} is missing")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{self.name}: field {key!r} must be an integer, got {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.name}: field {key!r} must be a number, got {value!r}")
        return float(value)

    def integers(self, key: str, default: list[Json] | None = None) -> tuple[int, ...]:
        value = self._get(key, default)
        items = value if isinstance(value, list) else [value]
        numbers = tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))
        if len(numbers) != len(items):
            raise ConfigError(f"{self.name}: field {key!r} must hold integers, got {value!r}")
        return numbers

    def table_of(self, key: str) -> _Fields:
        value = self._get(key, None)
        if not isinstance(value, dict):
            raise ConfigError(f"{self.name}: field {key!r} must be an object")
        return _Fields(f"{self.name}: {key}", value)

    def require(self, key: str, expected: Json) -> None:
        """Refuses a setting that the port does not implement; absent means the default."""
        value = self.table.get(key, expected)
        if value != expected:
            raise ConfigError(
                f"{self.name}: {key} = {value!r} is not supported (this port runs {expected!r})"
            )


def read_json(path: Path) -> dict[str, Json]:
    """The JSON object in `path`. Raises ConfigError naming the file if it holds anything else."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return table


def _vision_config(fields: _Fields) -> VisionConfig:
    fields.require("hidden_act", "silu")
    config = VisionConfig(
        depth=fields.integer("depth"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_heads=fields.integer("num_heads"),
        # the 2024 releases spell it in_chans
        in_channels=fields.integer("in_channels", fields.integer("in_chans", 3)),
        patch_size=fields.integer("patch_size"),
        spatial_merge_size=fields.integer("spatial_merge_size"),
        temporal_patch_size=fields.integer("temporal_patch_size"),
        window_size=fields.integer("window_size"),
        out_hidden_size=fields.integer("out_hidden_size"),
        fullatt_block_indexes=fields.integers("fullatt_block_indexes"),
    )
    unit = config.patch_size * config.spatial_merge_size
    if config.window_size < unit:
        raise ConfigError(f"{fields.name}: window_size {config.window_size} is under {unit} pixels")
    if config.hidden_size % config.num_heads or config.head_dim % 4:
        raise ConfigError(f"{fields.name}: hidden_size / num_heads must be a multiple of 4")
    return config


def _text_config(fields: _Fields, outer: _Fields) -> TextConfig:
    fields.require("hidden_act", "silu")
    if fields.table.get("use_sliding_window") not in (None, False):
        raise ConfigError(f"{fields.name}: use_sliding_window is not supported")
    scaling_key = "rope_parameters" if fields.table.get("rope_parameters") else "rope_scaling"
    scaling = fields.table_of(scaling_key)
    kind = scaling.table.get("rope_type", scaling.table.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise ConfigError(f"{scaling.name}: rope type {kind!r} is not supported")
    theta = scaling.number("rope_theta", fields.number("rope_theta", 1000000.0))
    section = scaling.integers("mrope_section")
    # transformers writes tie_word_embeddings at the root, older releases inside text_config
    tied = bool(outer.table.get("tie_word_embeddings", False)) or bool(
        fields.table.get("tie_word_embeddings", False)
    )
    heads = fields.integer("num_attention_heads")
    config = TextConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-5),
        rope_theta=theta,
        mrope_section=(section[0], section[1], section[2]) if len(section) == 3 else (0, 0, 0),
        tie_word_embeddings=tied,
        max_position_embeddings=fields.integer("max_position_embeddings", 32768),
    )
    if sum(config.mrope_section) * 2 != config.head_dim:
        raise ConfigError(
            f"{scaling.name}: mrope_section {list(section)} must hold three sizes that sum to "
            f"half the head size ({config.head_dim // 2})"
        )
    if heads % config.num_key_value_heads:
        raise ConfigError(f"{fields.name}: num_attention_heads must divide by num_key_value_heads")
    return config


def config_from_json(table: Mapping[str, Json], name: str) -> Config:
    """A Config from the object of a published config.json.

    Both published layouts are read: text fields at the root (the hub's files) and inside
    `text_config` (what transformers 5 writes).

    Args:
        table: the parsed file.
        name: how errors call it, usually its path.

    Raises:
        ConfigError: unsupported architecture or option, missing or inconsistent field, no stop id,
            an id outside the vocabulary.
    """
    root = _Fields(name, table)
    architectures = table.get("architectures")
    if table.get("model_type") != "qwen2_5_vl" and architectures != [ARCHITECTURE]:
        raise ConfigError(
            f"{name}: architecture {architectures or table.get('model_type')!r} is not supported; "
            f"use a Qwen2.5-VL folder ({ARCHITECTURE})"
        )
    text = root.table_of("text_config") if table.get("text_config") else root
    ids = text if "eos_token_id" in text.table else root
    eos = ids.integers("eos_token_id", [151645])
    if not eos:
        raise ConfigError(f"{ids.name}: field 'eos_token_id' must name at least one id")
    # transformers writes null where there is none
    no_pad = ids.table.get("pad_token_id") is None
    config = Config(
        vision=_vision_config(root.table_of("vision_config")),
        text=_text_config(text, root),
        image_token_id=root.integer("image_token_id", 151655),
        video_token_id=root.integer("video_token_id", 151656),
        vision_start_token_id=root.integer("vision_start_token_id", 151652),
        vision_end_token_id=root.integer("vision_end_token_id", 151653),
        eos_token_ids=eos,
        pad_token_id=eos[0] if no_pad else ids.integer("pad_token_id"),
    )
    named = (
        *(("eos_token_id", id) for id in eos),
        ("pad_token_id", config.pad_token_id),
        ("image_token_id", config.image_token_id),
        ("video_token_id", config.video_token_id),
        ("vision_start_token_id", config.vision_start_token_id),
        ("vision_end_token_id", config.vision_end_token_id),
    )
    size = config.text.vocab_size
    for field, id in named:
        # an id outside would index past the masks, or be embedded as NaN
        if not 0 <= id < size:
            raise ConfigError(
                f"{name}: {field} {id} is not one of the {size} ids of the vocabulary"
            )
    return config


def load_config(folder: Path) -> Config:
    """Reads `folder`/config.json, with the stop ids of generation_config.json where it stands.

    Of generation_config.json only eos_token_id and pad_token_id are read: its sampling settings
    never apply silently (known-fault V9).

    Raises:
        ConfigError: as `config_from_json`, or when the file is absent or no JSON.
    """
    table = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    if generation.is_file():
        stops = read_json(generation)
        inner = table.get("text_config")
        target = inner if isinstance(inner, dict) else table
        for key in ("eos_token_id", "pad_token_id"):
            if stops.get(key) is not None:
                target[key] = stops[key]
    return config_from_json(table, str(folder / "config.json"))


def config_to_json(config: Config, dtype: str) -> dict[str, Json]:
    """The object of a config.json that transformers and `load_config` read back.

    Args:
        config: the model.
        dtype: the weights' type as transformers names it, "bfloat16" or "float32".
    """
    vision, text = config.vision, config.text
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen2_5_vl",
        "dtype": dtype,
        "image_token_id": config.image_token_id,
        "video_token_id": config.video_token_id,
        "vision_start_token_id": config.vision_start_token_id,
        "vision_end_token_id": config.vision_end_token_id,
        "tie_word_embeddings": text.tie_word_embeddings,
        "text_config": {
            "model_type": "qwen2_5_vl_text",
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.num_hidden_layers,
            "num_attention_heads": text.num_attention_heads,
            "num_key_value_heads": text.num_key_value_heads,
            "hidden_act": "silu",
            "rms_norm_eps": text.rms_norm_eps,
            "max_position_embeddings": text.max_position_embeddings,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": text.rope_theta,
                "mrope_section": list(text.mrope_section),
            },
            "use_sliding_window": False,
            "eos_token_id": list(config.eos_token_ids),
            "pad_token_id": config.pad_token_id,
            "bos_token_id": None,
        },
        "vision_config": {
            "model_type": "qwen2_5_vl_vision",
            "depth": vision.depth,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_heads": vision.num_heads,
            "hidden_act": "silu",
            "in_channels": vision.in_channels,
            "patch_size": vision.patch_size,
            "spatial_merge_size": vision.spatial_merge_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "window_size": vision.window_size,
            "out_hidden_size": vision.out_hidden_size,
            "fullatt_block_indexes": list(vision.fullatt_block_indexes),
        },
    }
