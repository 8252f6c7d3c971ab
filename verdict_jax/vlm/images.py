"""Pictures as normalised patches."""

from __future__ import annotations

import io
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from PIL import Image, ImageOps

from verdict_jax.vlm.config import ConfigError, Json, VisionConfig, read_json

MAX_ASPECT_RATIO = 200
"""Longest over shortest side that the published processor accepts."""

# Raster formats only: Pillow opens EPS by running Ghostscript on it.
_FORMATS = (
    "AVIF",
    "BMP",
    "DIB",
    "GIF",
    "ICO",
    "JPEG",
    "JPEG2000",
    "PCX",
    "PNG",
    "PPM",
    "SGI",
    "TGA",
    "TIFF",
    "WEBP",
)

# What Pillow's decoders let through on damaged files, next to their documented OSError.
_DECODER_ERRORS = (
    OSError,
    RuntimeError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    struct.error,
    zlib.error,
)


# Grey values wider than 8 bits, which Pillow's own conversion to RGB clips.
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")


class ImageError(ValueError):
    """One picture that cannot be used; the message names it, with the reason."""


def load_image(source: Path | bytes | Image.Image) -> Image.Image:
    """The picture as upright 8-bit RGB.

    EXIF orientation is applied and transparency is composited on white. Grey pictures of more
    than 8 bits are scaled, not clipped: 16-bit modes by 255/65535; modes I and F, which do not
    declare their range, from the smallest of [0, 1] (F only), [0, 255] and [0, 65535] that holds
    their values, else from their own minimum and maximum. Of an animation or a multi-page file
    the first frame is read; a decoded picture is taken at its current frame and is not changed.

    Args:
        source: a file, the bytes of a file, or a decoded picture.

    Raises:
        ImageError: absent, empty, broken or truncated file, no supported raster format, no
            pixels, more pixels than Pillow's decompression-bomb limit, values that are not finite.
    """
    if isinstance(source, Path):
        name = str(source)
    else:
        decoded = isinstance(source, Image.Image)
        name = "decoded picture" if decoded else f"picture of {len(source)} bytes"
    upright = _decode(source, name)
    if not upright.width or not upright.height:
        raise ImageError(f"{name}: has no pixels ({upright.width} x {upright.height})")
    if upright.mode in _DEEP_MODES:
        return _scaled_grey(upright, name)
    try:
        if upright.mode == "La":
            upright = upright.convert("LA")
        if not upright.has_transparency_data:
            return upright.convert("RGB")
        colours = upright.convert("RGBA")
    except ValueError as error:
        raise ImageError(f"{name}: mode {upright.mode} has no RGB form ({error})") from error
    white = Image.new("RGBA", colours.size, "white")
    return Image.alpha_composite(white, colours).convert("RGB")


def _decode(source: Path | bytes | Image.Image, name: str) -> Image.Image:
    """A copy of the picture as decoded, with its EXIF orientation applied."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(source, Image.Image):
                return ImageOps.exif_transpose(source)
            file = source if isinstance(source, Path) else io.BytesIO(source)
            with Image.open(file, formats=_FORMATS) as picture:
                # EXIF may stand behind the pixels
                picture.load()
                return ImageOps.exif_transpose(picture)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name}: too many pixels to decode safely ({error}); scale it down"
        ) from error
    except FileNotFoundError as error:
        raise ImageError(f"{name}: no such file; check its path") from error
    except Image.UnidentifiedImageError as error:
        raise ImageError(
            f"{name}: not a picture in a supported format; save it as PNG or JPEG"
        ) from error
    except _DECODER_ERRORS as error:
        raise ImageError(
            f"{name}: cannot be decoded ({error}); give a picture file that opens"
        ) from error


def _scaled_grey(image: Image.Image, name: str) -> Image.Image:
    values = np.asarray(image).astype(np.float64)
    if not np.isfinite(values).all():
        raise ImageError(f"{name}: holds values that are not finite")
    low, high = 0.0, 65535.0
    if image.mode in ("I", "F"):
        ranges = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
        fitting = [top for top in ranges if values.min() >= 0 and values.max() <= top]
        low, high = (0.0, fitting[0]) if fitting else (values.min(), values.max())
    span = high - low
    grey = np.rint((values - low) * (255 / span)) if span else np.zeros_like(values)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")


@dataclass(frozen=True)
class ProcessedImage:
    """One picture as the vision encoder reads it.

    Attributes:
        patches: normalised pixels (channel, time, row, column), one row per patch; the patches of
            a merge unit are contiguous, the units stand in raster order.
        grid: (rows, columns) of the picture in patches.
    """

    patches: Float32[np.ndarray, "patches pixels"]
    grid: tuple[int, int]

    def num_tokens(self, config: VisionConfig) -> int:
        """Image placeholders that this picture fills: merge units of its grid."""
        return self.grid[0] * self.grid[1] // config.merge_unit


@dataclass(frozen=True)
class ImageProcessor:
    """Resizes and normalises pictures as a checkpoint was trained on them.

    Attributes:
        config: sizes of patch and merge unit.
        min_pixels: least rows times columns after resizing.
        max_pixels: most rows times columns after resizing.
        resample: Pillow's filter for resizing.
        patchify: normalises a resized picture and cuts it into patches, merge unit by merge unit.
    """

    config: VisionConfig
    min_pixels: int
    max_pixels: int
    resample: Image.Resampling
    patchify: Callable[[Image.Image], Float32[np.ndarray, "patches pixels"]]

    def process(self, image: Image.Image) -> ProcessedImage:
        """Patches of one RGB picture, as `load_image` returns it.

        Raises:
            ImageError: the picture is not RGB, has no pixels or is too elongated.
        """
        if image.mode != "RGB":
            raise ImageError(f"picture in mode {image.mode}: expected RGB, see load_image")
        patch = self.config.patch_size
        factor = patch * self.config.spatial_merge_size
        height, width = target_size(
            image.height, image.width, factor, self.min_pixels, self.max_pixels
        )
        patches = self.patchify(image.resize((width, height), self.resample))
        return ProcessedImage(patches, (height // patch, width // patch))


def target_size(
    height: int, width: int, factor: int, min_pixels: int, max_pixels: int
) -> tuple[int, int]:
    """(rows, columns) in pixels to which a picture is resized: multiples of `factor`.

    The published `smart_resize` wherever its result keeps both bounds. It does not for elongated
    pictures at a small `max_pixels` (31 x 6200 gives 28 x 1764 = 49,392 pixels at 15,680), where
    rounding up to `min_pixels` passes `max_pixels`, and where a side rounds to zero. There we take
    the size within the bounds whose sides are nearest, as logarithms, to those of the picture
    scaled into the bounds at its own aspect ratio.

    Raises:
        ImageError: no pixels, or the aspect ratio is above MAX_ASPECT_RATIO.
    """
    if min(height, width) < 1:
        raise ImageError(f"picture of {width} x {height}: has no pixels")
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise ImageError(
            f"picture of {width} x {height}: the longer side may be at most "
            f"{MAX_ASPECT_RATIO} times the shorter; crop it"
        )
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    rows, columns = smart_resize(height, width, factor, min_pixels, max_pixels)
    if min(rows, columns) >= factor and min_pixels <= rows * columns <= max_pixels:
        return rows, columns
    unit = factor**2
    fewest, most = max(1, -(-min_pixels // unit)), max_pixels // unit
    area = min(max(height * width / unit, fewest), most)
    ideal_rows, ideal_columns = math.sqrt(area * height / width), math.sqrt(area * width / height)
    row_units = np.arange(1, most + 1)
    least, greatest = -(-fewest // row_units), most // row_units
    column_units = np.clip(round(ideal_columns), least, greatest)
    distance = np.hypot(np.log(row_units / ideal_rows), np.log(column_units / ideal_columns))
    # a row count whose columns cannot meet both bounds is no choice
    distance[least > greatest] = np.inf
    best = int(distance.argmin())
    return int(row_units[best]) * factor, int(column_units[best]) * factor


def load_image_processor(folder: Path, config: VisionConfig) -> ImageProcessor:
    """The image processor of a checkpoint folder.

    Reads preprocessor_config.json, or the `image_processor` of processor_config.json, where
    transformers 5 writes it. The pixel bounds may stand as min_pixels / max_pixels at the root or
    in `size`, or as shortest_edge / longest_edge in `size`; the root wins, as in transformers.
    Normalising and cutting into patches is transformers' Qwen2VLImageProcessorPil, which needs no
    torch.

    Raises:
        ConfigError: no such file, a field that is ill-typed or not supported, a patch or merge
            size other than the model's, or bounds that no multiple of the merge unit can meet.
    """
    table, name = _preprocessor_table(folder)
    for key in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        if table.get(key, True) is not True:
            raise ConfigError(f"{name}: {key} = {table[key]!r} is not supported")
    for key, expected in (
        ("patch_size", config.patch_size),
        ("merge_size", config.spatial_merge_size),
        ("temporal_patch_size", config.temporal_patch_size),
    ):
        if table.get(key, expected) != expected:
            raise ConfigError(
                f"{name}: {key} is {table[key]!r}, but the model's config.json says {expected}"
            )
    min_pixels, max_pixels = _pixel_bounds(table, name)
    unit = (config.patch_size * config.spatial_merge_size) ** 2
    if max(1, -(-min_pixels // unit)) > max_pixels // unit:
        raise ConfigError(
            f"{name}: no picture fits between {min_pixels} and {max_pixels} pixels in whole "
            f"merge units of {unit} pixels"
        )
    resample = table.get("resample", int(Image.Resampling.BICUBIC))
    if resample not in [int(known) for known in Image.Resampling]:
        raise ConfigError(f"{name}: resample = {resample!r} is no filter of Pillow")

    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    channels = config.in_channels
    published = Qwen2VLImageProcessorPil(
        do_resize=False,
        rescale_factor=_numbers(table, "rescale_factor", [1 / 255], 1, name)[0],
        image_mean=_numbers(table, "image_mean", OPENAI_CLIP_MEAN, channels, name),
        image_std=_numbers(table, "image_std", OPENAI_CLIP_STD, channels, name),
        patch_size=config.patch_size,
        merge_size=config.spatial_merge_size,
        temporal_patch_size=config.temporal_patch_size,
    )

    def patchify(image: Image.Image) -> Float32[np.ndarray, "patches pixels"]:
        return np.asarray(
            published.preprocess([image], return_tensors="np")["pixel_values"], np.float32
        )

    return ImageProcessor(
        config, min_pixels, max_pixels, Image.Resampling(int(str(resample))), patchify
    )


def _preprocessor_table(folder: Path) -> tuple[dict[str, Json], str]:
    path = folder / "preprocessor_config.json"
    combined = folder / "processor_config.json"
    if not path.is_file() and combined.is_file():
        inner = read_json(combined).get("image_processor")
        if isinstance(inner, dict):
            return inner, f"{combined}: image_processor"
    return read_json(path), str(path)


def _pixel_bounds(table: dict[str, Json], name: str) -> tuple[int, int]:
    size = table.get("size")
    inner = size if isinstance(size, dict) else {}
    bounds = []
    for key, edge, default in (
        ("min_pixels", "shortest_edge", 56 * 56),
        ("max_pixels", "longest_edge", 28 * 28 * 1280),
    ):
        spelled = (table.get(key), inner.get(edge), inner.get(key), default)
        value = next(value for value in spelled if value is not None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{name}: {key} must be a whole number of pixels, got {value!r}")
        bounds.append(value)
    return bounds[0], bounds[1]


def _numbers(
    table: dict[str, Json], key: str, default: Sequence[float], count: int, name: str
) -> list[float]:
    value = table.get(key)
    items = list(default) if value is None else value if isinstance(value, list) else [value]
    numbers = [
        float(item)
        for item in items
        if isinstance(item, int | float) and not isinstance(item, bool)
    ]
    if len(numbers) != len(items) or len(numbers) != count:
        raise ConfigError(f"{name}: {key} must be {count} number(s), got {value!r}")
    return numbers
