"""A published checkpoint folder as one value."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
from jax.typing import DTypeLike
from transformers import PreTrainedTokenizerFast

from verdict_jax.vlm.config import Config, ConfigError, load_config
from verdict_jax.vlm.images import ImageProcessor, load_image_processor
from verdict_jax.vlm.parameters import Params
from verdict_jax.vlm.pictures import EncodedPictures, ImageSource, PictureMemo, encode_pictures
from verdict_jax.vlm.prompting import frame
from verdict_jax.vlm.sampling import TokenMasks
from verdict_jax.vlm.tokenizer import TokenizerError, load_tokenizer, token_masks
from verdict_jax.vlm.weights import WeightsError, load_params

_SAMPLED_BYTES = 1 << 20


class CheckpointError(ValueError):
    """A folder that is no usable checkpoint; one line says what is wrong, then what to do."""


@dataclass(frozen=True, eq=False)
class VLM:
    """A Qwen2.5-VL with all that stands between text, pictures and tokens.

    Attributes:
        config: the model.
        params: its parameters.
        tokenizer: with a chat template.
        image_processor: as the model was trained.
        masks: what the vocabulary means to the sampler.
        name: names the weights, for traces and stored trees.
        pictures: features of the last batches, shared by all who hold this value; a copy with
            other parameters starts with none.
    """

    config: Config
    params: Params
    tokenizer: PreTrainedTokenizerFast
    image_processor: ImageProcessor
    masks: TokenMasks
    name: str
    pictures: PictureMemo = field(init=False, repr=False, default_factory=PictureMemo)

    @property
    def dtype(self) -> str:
        """The parameters' type, as numpy names it."""
        return str(jax.tree.leaves(self.params["text"]["norm"])[0].dtype)

    def encode(self, rows: Sequence[Sequence[ImageSource]]) -> EncodedPictures:
        """The pictures of each row of a batch; see `pictures.encode_pictures`."""
        return encode_pictures(self.config, self.params, self.image_processor, self.pictures, rows)


def load_vlm(folder: Path, dtype: DTypeLike | None = None) -> VLM:
    """The checkpoint in a folder of the published format.

    Args:
        folder: config.json, weights (single or sharded safetensors), tokenizer.json,
            tokenizer_config.json with a chat template, preprocessor_config.json.
        dtype: of the parameters; None keeps the stored one.

    Raises:
        CheckpointError: no such folder, missing files, an unsupported architecture, weights that
            do not fit, a tokenizer, chat template or image processor that cannot be used.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise CheckpointError(f"{folder}: {what}; give the folder of a Qwen2.5-VL checkpoint")
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder}: holds no config.json; give the folder of a Qwen2.5-VL checkpoint"
        )
    try:
        config = load_config(folder)
        _require_files(folder)
        tokenizer = load_tokenizer(folder)
        masks = token_masks(config, tokenizer)
        frame(tokenizer, config, "", 1)
        processor = load_image_processor(folder, config.vision)
        params = load_params(folder, config, dtype)
    except (ConfigError, TokenizerError, WeightsError) as error:
        message = " ".join(str(error).split())
        advice = "" if ";" in message else "; use a whole, unchanged Qwen2.5-VL checkpoint folder"
        raise CheckpointError(message + advice) from error
    name = f"{folder.resolve().name}@{_fingerprint(folder)}"
    return VLM(config, params, tokenizer, processor, masks, name)


def _require_files(folder: Path) -> None:
    alternatives = (
        ("tokenizer.json",),
        ("tokenizer_config.json",),
        ("preprocessor_config.json", "processor_config.json"),
        ("model.safetensors", "model.safetensors.index.json"),
    )
    missing = [
        names[0] for names in alternatives if not any((folder / name).is_file() for name in names)
    ]
    if missing:
        raise CheckpointError(
            f"{folder}: lacks {', '.join(missing)}; download the whole checkpoint folder"
        )


def _fingerprint(folder: Path) -> str:
    """Tells checkpoints apart: the small files, and of each weight file its size and both ends.

    The weights are sampled because reading all of a large model would double its loading time.
    """
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.jinja")]):
        digest.update(path.name.encode() + path.read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as weights:
            digest.update(weights.read(_SAMPLED_BYTES))
            weights.seek(max(0, size - _SAMPLED_BYTES))
            digest.update(weights.read())
    return digest.hexdigest()[:8]
