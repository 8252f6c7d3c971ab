"""Nearest pictures of a local set."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from svrl_jax.search.image_index import (
    CROPS,
    GRID,
    IndexedImage,
    LocalImageIndex,
    embed,
    oklab,
    views,
)
from svrl_jax.search.protocol import ImageHit


def hit(key: str) -> ImageHit:
    return ImageHit(key, f"title {key}", f"{key}.png", "test")


def stripes(colours: str, upright: bool, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """A flag of equal stripes, a letter each: red, white, blue, green, yellow, black."""
    names = {"r": "#c8102e", "w": "#ffffff", "b": "#012169", "g": "#007a3d", "y": "#ffcd00",
             "k": "#000000"}  # fmt: skip
    narrow = Image.new("RGB", (len(colours), 1))
    for place, letter in enumerate(colours):
        narrow.paste(names[letter], (place, 0, place + 1, 1))
    if not upright:
        narrow = narrow.transpose(Image.Transpose.ROTATE_270)
    return narrow.resize(size, Image.Resampling.NEAREST)


FLAGS = {
    f"{colours}{'|' if upright else '-'}": stripes(colours, upright)
    for colours in ("rwb", "bwr", "rwr", "gwr", "kry", "yrk", "wbr", "rw", "wr", "yb", "rgb", "gyr")
    for upright in (True, False)
}
INDEX = LocalImageIndex([IndexedImage(hit(key), image) for key, image in FLAGS.items()])


def distorted(image: Image.Image, kind: str) -> Image.Image:
    noise = np.random.default_rng(0).normal(0, 12, (image.height, image.width, 3))
    match kind:
        case "small":
            return image.resize((24, 16), Image.Resampling.BILINEAR)
        case "large":
            return image.resize((300, 200), Image.Resampling.BICUBIC)
        case "squeezed":
            return image.resize((64, 64), Image.Resampling.BILINEAR)
        case "cropped":
            return image.crop((0, 0, round(0.8 * image.width), round(0.85 * image.height)))
        case "turned":
            return image.rotate(6, Image.Resampling.BICUBIC, fillcolor="gray")
        case "noisy":
            pixels = np.asarray(image, np.float64) + noise
            return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        case _:
            return image


KINDS = ["as it is", "small", "large", "squeezed", "cropped", "turned", "noisy"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_distorted_picture_is_found(kind: str) -> None:
    found = {key: INDEX.search(distorted(image, kind), 1) for key, image in FLAGS.items()}
    assert found == {key: (hit(key),) for key in FLAGS}


def test_the_most_alike_come_next() -> None:
    order = [found.id for found in INDEX.search(FLAGS["rwb-"], len(FLAGS))]
    assert order[0] == "rwb-"
    assert order.index("rwr-") < order.index("bwr-")


def test_equal_distances_are_ordered_by_id() -> None:
    same = [IndexedImage(hit(key), FLAGS["rw-"]) for key in ("c", "a10", "b", "a9")]
    index = LocalImageIndex([*same, IndexedImage(hit("0"), FLAGS["yb|"])])
    query = distorted(FLAGS["rw-"], "noisy")
    assert [found.id for found in index.search(query, 9)] == ["a10", "a9", "b", "c", "0"]
    assert [found.id for found in index.search(query, 2)] == ["a10", "a9"]


def test_a_small_set() -> None:
    assert len(INDEX.search(FLAGS["rw-"], 10**9)) == len(FLAGS)
    assert LocalImageIndex([]).search(FLAGS["rw-"], 3) == ()


@pytest.mark.parametrize("top_k", [0, -1])
def test_at_least_one_hit_is_asked_for(top_k: int) -> None:
    with pytest.raises(ValueError, match="top_k"):
        INDEX.search(FLAGS["rw-"], top_k)


def test_an_id_stands_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        LocalImageIndex([IndexedImage(hit("a"), FLAGS["rw-"])] * 2)


def test_the_version_tells_the_set() -> None:
    one = LocalImageIndex([IndexedImage(hit("a"), FLAGS["rw-"])])
    other_picture = LocalImageIndex([IndexedImage(hit("a"), FLAGS["wr-"])])
    other_title = LocalImageIndex([IndexedImage(ImageHit("a", "b", "a.png", "test"), FLAGS["rw-"])])
    assert len({one.version, other_picture.version, other_title.version}) == 3
    assert LocalImageIndex([IndexedImage(hit("a"), FLAGS["rw-"].copy())]).version == one.version


def test_colours_in_oklab() -> None:
    # from Ottosson's description: white has lightness 1 and no colour; sRGB red, green, blue
    rgb = np.array([[1, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float64)
    expected = [
        [1, 0, 0], [0, 0, 0], [0.628, 0.225, 0.126], [0.866, -0.234, 0.179],
        [0.452, -0.032, -0.312],
    ]  # fmt: skip
    np.testing.assert_allclose(oklab(rgb), expected, atol=1e-3)


def test_an_embedding_reads_the_grid_row_by_row() -> None:
    image = Image.new("RGB", (GRID * 4, GRID * 4), "black")
    image.paste("white", (4, 0, 8, 4))
    cells = embed(image).reshape(GRID, GRID, 3)
    assert cells[0, 1, 0] == pytest.approx(1, abs=1e-3)
    assert np.abs(np.delete(cells.reshape(-1, 3), 1, axis=0)).max() < 1e-6


def test_views() -> None:
    image = Image.new("RGB", (100, 50))
    seen = list(views(image))
    assert len(seen) == 1 + 9 * len(CROPS)
    assert seen[0].size == (100, 50)
    assert {view.size for view in seen[1:10]} == {(90, 45)}
    assert {view.size for view in views(Image.new("RGB", (1, 1)))} == {(1, 1)}
