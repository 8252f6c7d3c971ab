"""Pictures of every mode, the published preprocessing, and windows of patches."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)

from verdict_jax.vlm.config import ConfigError, VisionConfig
from verdict_jax.vlm.images import (
    ImageError,
    ImageProcessor,
    load_image,
    load_image_processor,
    target_size,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)

PUBLISHED = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}


def vision_config(patch_size: int = 14, window_size: int = 112, merge: int = 2) -> VisionConfig:
    return VisionConfig(
        depth=2,
        hidden_size=32,
        intermediate_size=32,
        num_heads=2,
        in_channels=3,
        patch_size=patch_size,
        spatial_merge_size=merge,
        temporal_patch_size=2,
        window_size=window_size,
        out_hidden_size=32,
        fullatt_block_indexes=(1,),
    )


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixels(image: Image.Image) -> list[list[list[int]]]:
    assert image.mode == "RGB"
    return np.asarray(image).tolist()


def filled(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (3, 2), colour)  # pyright: ignore[reportArgumentType]


# ------------------------------------------------------------------------------ modes (V6)


@pytest.mark.parametrize(
    ("image", "colour"),
    [
        (filled("RGB", (10, 20, 30)), (10, 20, 30)),
        (filled("RGBX", (10, 20, 30, 7)), (10, 20, 30)),
        (filled("L", 77), (77, 77, 77)),
        (filled("1", 1), (255, 255, 255)),
        (filled("1", 0), (0, 0, 0)),
        (filled("CMYK", (255, 0, 0, 0)), (0, 255, 255)),
        (filled("CMYK", (0, 0, 0, 255)), (0, 0, 0)),
        (filled("YCbCr", (128, 128, 128)), (128, 128, 128)),
        (filled("HSV", (0, 255, 255)), (255, 0, 0)),
        # alpha on white: 255 * (1 - a) + colour * a
        (filled("RGBA", (0, 0, 0, 0)), (255, 255, 255)),
        (filled("RGBA", (200, 100, 0, 51)), (244, 224, 204)),
        (filled("RGBA", (200, 100, 0, 255)), (200, 100, 0)),
        (filled("LA", (0, 51)), (204, 204, 204)),
        (filled("LA", (9, 0)), (255, 255, 255)),
        (filled("La", (0, 51)), (204, 204, 204)),
        (filled("RGBa", (0, 0, 0, 51)), (204, 204, 204)),
        (filled("RGBA", (255, 0, 0, 0)).convert("PA"), (255, 255, 255)),
        (filled("RGB", (255, 0, 0)).convert("P"), (255, 0, 0)),
        # 16 bits: value * 255 / 65535, rounded, never clipped
        (filled("I;16", 65535), (255, 255, 255)),
        (filled("I;16", 257 * 100), (100, 100, 100)),
        (filled("I;16", 128), (0, 0, 0)),
        (filled("I;16", 129), (1, 1, 1)),
        (filled("I;16B", 257 * 100), (100, 100, 100)),
        (filled("I;16L", 257 * 100), (100, 100, 100)),
        (filled("I", 200), (200, 200, 200)),
        (filled("I", 257 * 200), (200, 200, 200)),
        (filled("F", 0.5), (128, 128, 128)),
        (filled("F", 199.6), (200, 200, 200)),
        (filled("F", 257.0 * 30), (30, 30, 30)),
        (filled("F", 1e9), (0, 0, 0)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else str(value),
)
def test_every_mode_in_memory(image, colour):
    before = image.tobytes()
    assert pixels(load_image(image)) == [[list(colour)] * 3] * 2
    assert image.tobytes() == before


def test_lab():
    loaded = np.asarray(load_image(filled("LAB", (255, 128, 128)))).astype(int)
    # the colour profile is the linked library's own
    assert np.abs(loaded - 255).max() <= 2


@pytest.mark.parametrize(
    ("mode", "values", "greys"),
    [
        ("I", [-1000, 0, 1000], [0, 128, 255]),
        ("I", [0, 131070, 65535], [0, 255, 128]),
        ("F", [-1.0, 1.0, 0.0], [0, 255, 128]),
    ],
)
def test_wide_ranges_are_scaled_from_their_own_extremes(mode, values, greys):
    image = Image.new(mode, (3, 1))
    image.putdata(values)
    assert [grey[0] for grey in pixels(load_image(image))[0]] == greys


def test_values_that_are_not_finite_are_refused():
    with pytest.raises(ImageError, match="not finite"):
        load_image(Image.fromarray(np.array([[1.0, np.nan]], np.float32)))


def test_palette_transparency_is_white():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert pixels(load_image(encoded(image, "PNG"))) == [[[10, 20, 30], [40, 50, 60]]]
    by_index = encoded(image, "PNG", transparency=1)
    assert pixels(load_image(by_index)) == [[[10, 20, 30], [255, 255, 255]]]
    by_table = encoded(image, "PNG", transparency=bytes([255, 51]))
    # 255 * .8 + (40, 50, 60) * .2
    assert pixels(load_image(by_table)) == [[[10, 20, 30], [212, 214, 216]]]


def test_colour_keys_are_white():
    image = Image.new("RGB", (2, 1))
    image.putdata([(1, 2, 3), (4, 5, 6)])
    key = encoded(image, "PNG", transparency=(4, 5, 6))
    assert pixels(load_image(key)) == [[[1, 2, 3], [255, 255, 255]]]
    grey = Image.new("L", (2, 1))
    grey.putdata([9, 8])
    assert pixels(load_image(encoded(grey, "PNG", transparency=9))) == [[[255] * 3, [8] * 3]]
    deep = Image.fromarray(np.array([[257 * 9, 257 * 8]], np.uint16))
    loaded = load_image(encoded(deep, "PNG", transparency=257 * 9))
    assert pixels(loaded) == [[[255] * 3, [8] * 3]]


@pytest.mark.parametrize(
    ("mode", "format", "tolerance"),
    [
        ("RGB", "PNG", 0),
        ("RGBA", "PNG", 0),
        ("LA", "PNG", 0),
        ("L", "PNG", 0),
        ("1", "PNG", 0),
        ("P", "PNG", 0),
        ("I;16", "PNG", 0),
        ("I;16", "TIFF", 0),
        ("I", "TIFF", 0),
        ("F", "TIFF", 0),
        ("CMYK", "TIFF", 0),
        ("CMYK", "JPEG", 6),
        ("L", "JPEG", 6),
        ("RGB", "JPEG", 6),
        ("RGBA", "WEBP", 6),
        ("P", "GIF", 0),
        ("RGBA", "TIFF", 0),
        ("RGB", "BMP", 0),
        ("L", "PPM", 0),
        ("RGBA", "ICO", 0),
    ],
)
def test_a_file_reads_as_the_picture_that_was_saved(mode, format, tolerance, tmp_path):
    image = filled("RGB", (64, 128, 191)).resize((16, 16)).convert("L" if mode[0] in "IF" else mode)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    elif mode in "IF":
        image = image.convert(mode)
    options = {"lossless": True} if format == "WEBP" else {}
    path = tmp_path / f"picture.{format.lower()}"
    path.write_bytes(encoded(image, format, **options))
    loaded, expected = load_image(path), load_image(image)
    assert loaded.size == (16, 16)
    difference = np.asarray(loaded).astype(int) - np.asarray(expected)
    assert np.abs(difference).max() <= tolerance
    assert load_image(path.read_bytes()).tobytes() == loaded.tobytes()


def test_pgm_of_16_bits_is_scaled():
    loaded = load_image(b"P5 2 1 65535\n" + np.array([257 * 3, 257 * 250], ">u2").tobytes())
    assert pixels(loaded) == [[[3] * 3, [250] * 3]]


def test_first_frame_of_an_animation():
    frames = [filled("RGB", colour) for colour in ("red", "lime", "blue")]
    for format in ("GIF", "PNG", "TIFF"):
        data = encoded(frames[0], format, save_all=True, append_images=frames[1:])
        assert pixels(load_image(data)) == [[[255, 0, 0]] * 3] * 2


ROTATIONS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", list(ROTATIONS))
def test_exif_orientation(orientation, format):
    raw = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if format == "WEBP" else {}
    data = encoded(Image.fromarray(raw), format, exif=exif, **options)
    upright = ROTATIONS[orientation](raw)
    assert pixels(load_image(data)) == upright.tolist()
    assert pixels(load_image(load_image(data))) == upright.tolist()
    if orientation == 6:
        assert load_image(data).size == (16, 24)


def test_exif_orientation_of_jpeg():
    raw = Image.new("RGB", (24, 16), "black")
    raw.paste("white", (0, 0, 12, 16))
    exif = Image.Exif()
    exif[0x0112] = 6
    loaded = load_image(encoded(raw, "JPEG", exif=exif))
    assert loaded.size == (16, 24)
    # turning clockwise brings the left half to the top
    assert loaded.getpixel((8, 3)) == (255, 255, 255)
    assert loaded.getpixel((8, 20)) == (0, 0, 0)


# --------------------------------------------------------------------------- broken files


def photograph(format: str) -> bytes:
    noise = np.random.default_rng(1).integers(0, 256, (40, 30, 3), np.uint8)
    return encoded(Image.fromarray(noise), format)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
def test_truncated_files_are_named(format, tmp_path):
    path = tmp_path / "cut.bin"
    data = photograph(format)
    for length in (0, 1, 20, len(data) // 2, len(data) * 9 // 10):
        path.write_bytes(data[:length])
        with pytest.raises(ImageError, match="cut.bin"):
            load_image(path)
        with pytest.raises(ImageError, match=f"picture of {length} bytes"):
            load_image(data[:length])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a picture"),
        (b"not a picture at all", "not a picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
        # Pillow would start Ghostscript for this one
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not a picture"),
        (b"P5 0 4 255\n", "."),
    ],
)
def test_other_files_are_named(content, reason, tmp_path):
    path = tmp_path / "odd.png"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=rf"odd\.png: .*{reason}"):
        load_image(path)


def test_absent_file_and_folder_are_named(tmp_path):
    with pytest.raises(ImageError, match=r"gone\.png: no such file"):
        load_image(tmp_path / "gone.png")
    with pytest.raises(ImageError, match=tmp_path.name):
        load_image(tmp_path)
    with pytest.raises(ImageError, match="aaa: cannot be decoded"):
        load_image(Path("a" * 300))


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (0, 0)])
def test_no_pixels(size):
    with pytest.raises(ImageError, match="no pixels"):
        load_image(Image.new("RGB", size))


def test_a_picture_whose_file_breaks_while_it_is_read():
    data = photograph("PNG")
    with pytest.raises(ImageError, match="decoded picture"):
        load_image(Image.open(io.BytesIO(data[: len(data) // 2])))


def test_a_truncated_exif_block_is_no_crash():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.new("RGB", (24, 16)), "WEBP", exif=exif)
    at = data.index(b"EXIF") + 8
    with pytest.raises(ImageError, match="cannot be decoded"):
        load_image(data[:at] + b"XX" + data[at + 2 :])


@pytest.mark.parametrize("limit", [150, 80])
def test_decompression_bombs(limit, monkeypatch):
    data = encoded(Image.new("L", (20, 10)), "PNG")
    assert load_image(data).size == (20, 10)
    # 200 pixels: above the limit Pillow warns, above twice the limit it raises
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with pytest.raises(ImageError, match="too many pixels"):
        load_image(data)


FILES = {
    format: photograph(format)
    for format in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000")
}


@settings(SETTINGS, max_examples=150)
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_files_load_or_raise_image_error(format, changes):
    data = bytearray(FILES[format])
    for place, value in changes:
        data[place % len(data)] = value
    try:
        assert load_image(bytes(data)).mode == "RGB"
    except ImageError:
        pass


# ---------------------------------------------------------------------------- sizes (V5)


def published_size(height, width, low, high):
    return smart_resize(height, width, 28, low, high)


@pytest.mark.parametrize(
    ("height", "width", "low", "high", "size"),
    [
        # the published choice stands
        (31, 639, 3136, 15680, (28, 560)),
        (1, 1, 3136, 12845056, (56, 56)),
        (8000, 8000, 3136, 12845056, (3584, 3584)),
        (100, 8000, 3136, 12845056, (112, 8008)),
        (1, 200, 3136, 12845056, (28, 812)),
        (200, 1, 3136, 12845056, (812, 28)),
        # it would be 28 x 1764, over the bound
        (31, 6200, 3136, 15680, (28, 560)),
        (6200, 31, 3136, 15680, (560, 28)),
        # it would be a zero side
        (13, 300, 0, 12845056, (28, 308)),
        # it would be rounded up past the bound
        (56, 60, 6 * 784, 6 * 784, (56, 84)),
        (60, 56, 5 * 784, 5 * 784, (140, 28)),
    ],
)
def test_target_size(height, width, low, high, size):
    assert target_size(height, width, 28, low, high) == size


@SETTINGS
@given(
    st.integers(1, 9000),
    st.integers(1, 9000),
    st.integers(0, 40),
    st.integers(0, 400),
)
@example(639, 31, 4, 16)
def test_sizes_are_multiples_within_bounds(height, width, low_units, more_units):
    low, high = low_units * 784, max(1, low_units + more_units) * 784
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ImageError, match=f"{width} x {height}"):
            target_size(height, width, 28, low, high)
        return
    rows, columns = target_size(height, width, 28, low, high)
    assert rows % 28 == columns % 28 == 0
    assert min(rows, columns) >= 28
    assert low <= rows * columns <= high
    published = published_size(height, width, low, high)
    if min(published) >= 28 and low <= published[0] * published[1] <= high:
        assert (rows, columns) == published


def write_folder(folder: Path, fields: dict[str, object], name: str = "preprocessor_config.json"):
    (folder / name).write_text(json.dumps(fields))
    return folder


def test_ratio_200_works_and_201_is_an_error_of_the_item(tmp_path):
    processor = load_image_processor(write_folder(tmp_path, PUBLISHED), vision_config())
    for size in ((200, 1), (1, 200)):
        assert sorted(processor.process(Image.new("RGB", size)).grid) == [2, 58]
    for size in ((201, 1), (1, 201)):
        with pytest.raises(ImageError, match=f"{size[0]} x {size[1]}.* 200 times"):
            processor.process(Image.new("RGB", size))


def test_1_pixel_and_8000_pixels(tmp_path):
    processor = load_image_processor(write_folder(tmp_path, PUBLISHED), vision_config())
    assert processor.process(Image.new("RGB", (1, 1))).grid == (4, 4)
    large = processor.process(Image.new("RGB", (8000, 120)))
    assert large.grid == (8, 572)
    assert large.num_tokens(vision_config()) == 4 * 286


def test_other_modes_are_refused(tmp_path):
    processor = load_image_processor(write_folder(tmp_path, PUBLISHED), vision_config())
    with pytest.raises(ImageError, match="mode L"):
        processor.process(Image.new("L", (30, 30)))


# ------------------------------------------------------------ the published preprocessing


@functools.cache
def small_processor() -> ImageProcessor:
    with tempfile.TemporaryDirectory() as folder:
        fields = PUBLISHED | {"max_pixels": 40 * 784}
        return load_image_processor(write_folder(Path(folder), fields), vision_config())


@SETTINGS
@given(st.integers(1, 150), st.integers(1, 150), st.integers(0, 2**32 - 1))
def test_equals_the_published_processor(height, width, seed):
    raw = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    image = Image.fromarray(raw)
    processed = small_processor().process(image)
    published = Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=40 * 784)
    expected = published(image, return_tensors="np")
    assert processed.grid == tuple(expected["image_grid_thw"][0, 1:])
    np.testing.assert_array_equal(processed.patches, expected["pixel_values"])
    assert processed.patches.dtype == np.float32


def test_patch_layout_by_hand(tmp_path):
    """A 4 x 8 picture of patches of 2 and merge 2: one value per pixel, no normalisation."""
    fields = {
        "min_pixels": 32,
        "max_pixels": 32,
        "patch_size": 2,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0, 0, 0],
        "image_std": [1, 1, 1],
    }
    config = vision_config(patch_size=2, window_size=8)
    processor = load_image_processor(write_folder(tmp_path, fields), config)
    raw = np.zeros((4, 8, 3), np.uint8)
    raw[..., 0] = np.arange(32).reshape(4, 8)
    raw[..., 2] = 100 + np.arange(32).reshape(4, 8)
    processed = processor.process(Image.fromarray(raw))
    assert processed.grid == (2, 4)
    values = np.rint(processed.patches * 255).astype(int)
    red = [
        [0, 1, 8, 9],
        [2, 3, 10, 11],
        [16, 17, 24, 25],
        [18, 19, 26, 27],
        [4, 5, 12, 13],
        [6, 7, 14, 15],
        [20, 21, 28, 29],
        [22, 23, 30, 31],
    ]
    # (channel, time, row, column): each frame twice
    assert values[:, :8].tolist() == [patch * 2 for patch in red]
    assert values[:, 8:16].tolist() == [[0] * 8] * 8
    assert values[:, 16:].tolist() == [[100 + value for value in patch * 2] for patch in red]


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [
        ({"min_pixels": 1568, "max_pixels": 7840}, 1568, 7840),
        ({"size": {"shortest_edge": 1568, "longest_edge": 7840}}, 1568, 7840),
        ({"size": {"min_pixels": 1568, "max_pixels": 7840}}, 1568, 7840),
        (
            {"max_pixels": 7840, "size": {"shortest_edge": 1568, "longest_edge": 99999}},
            1568,
            7840,
        ),
        ({}, 3136, 1003520),
        ({"size": None, "min_pixels": None}, 3136, 1003520),
    ],
)
def test_both_spellings_of_the_bounds(bounds, low, high, tmp_path):
    fields = {key: value for key, value in PUBLISHED.items() if not key.endswith("_pixels")}
    processor = load_image_processor(write_folder(tmp_path, fields | bounds), vision_config())
    assert (processor.min_pixels, processor.max_pixels) == (low, high)
    height, width = (28 * side for side in (40, 40))
    processed = processor.process(Image.new("RGB", (width, height)))
    rows, columns = processed.grid
    assert rows * columns * 14**2 <= high
    assert processor.process(Image.new("RGB", (9, 9))).patches.shape[0] * 14**2 >= low


def test_the_file_of_transformers_5(tmp_path):
    fields = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": PUBLISHED}
    folder = write_folder(tmp_path, fields, "processor_config.json")
    assert load_image_processor(folder, vision_config()).max_pixels == 12845056
    write_folder(folder, PUBLISHED | {"max_pixels": 7840})
    assert load_image_processor(folder, vision_config()).max_pixels == 7840


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 16}, "patch_size is 16.* 14"),
        ({"merge_size": 1}, "merge_size is 1.* 2"),
        ({"temporal_patch_size": 1}, "temporal_patch_size is 1.* 2"),
        ({"do_resize": False}, "do_resize = False"),
        ({"do_normalize": False}, "do_normalize = False"),
        ({"resample": 17}, "resample = 17"),
        ({"max_pixels": 783}, "no picture fits"),
        ({"min_pixels": 785, "max_pixels": 1567}, "no picture fits"),
        ({"min_pixels": 9000, "max_pixels": 8000}, "no picture fits"),
        ({"max_pixels": "many"}, "max_pixels must be"),
        ({"min_pixels": -1}, "min_pixels must be"),
        ({"image_mean": [0.5]}, r"image_mean must be 3 number\(s\)"),
        ({"image_std": ["a", "b", "c"]}, "image_std must be 3"),
        ({"rescale_factor": "small"}, "rescale_factor must be 1"),
    ],
)
def test_unusable_settings_are_named(change, message, tmp_path):
    folder = write_folder(tmp_path, PUBLISHED | change)
    with pytest.raises(ConfigError, match=rf"preprocessor_config\.json: {message}"):
        load_image_processor(folder, vision_config())


def test_no_settings(tmp_path):
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: no such file"):
        load_image_processor(tmp_path, vision_config())


def test_works_without_torch(tmp_path):
    """In a process where torch cannot be found, pictures and tokenizers still load."""
    write_folder(tmp_path, PUBLISHED)
    script = f"""
import importlib.util, sys
from pathlib import Path
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] in ("torch", "torchvision") else found(name, package)
)
from PIL import Image
import verdict_jax.vlm.images as images
import verdict_jax.vlm.config as config
vision = config.VisionConfig(2, 32, 32, 2, 3, 14, 2, 2, 112, 32, (1,))
assert "transformers" not in sys.modules
processor = images.load_image_processor(Path({str(tmp_path)!r}), vision)
print(processor.process(Image.new("RGB", (60, 90))).patches.shape)
import verdict_jax.vlm.tokenizer
print(sorted(set(sys.modules) & {{"torch", "torchvision", "tensorflow"}}))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[:2] == ["(24, 1176)", "[]"]
