"""Many questions on one sheet, for a person to look at."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from verdict_jax.prompts import LETTERS

if TYPE_CHECKING:
    from verdict_jax.benchmarks.tabletop import Item

SCALE, COLUMNS, MARGIN, TEXT_HEIGHT = 2, 4, 12, 92


def contact_sheet(items: Sequence[Item]) -> Image.Image:
    """The pictures in rows of four, twice their size, with question and choices below each.

    The right choice is marked with an asterisk.
    """
    side = items[0].picture.width * SCALE
    width, height = side + MARGIN, side + TEXT_HEIGHT
    rows = -(-len(items) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * width + MARGIN, rows * height + MARGIN), "white")
    canvas = ImageDraw.Draw(sheet)
    for number, item in enumerate(items):
        x = MARGIN + number % COLUMNS * width
        y = MARGIN + number // COLUMNS * height
        large = item.picture.resize((side, side), Image.Resampling.NEAREST)
        sheet.paste(large, (x, y))
        lines = textwrap.wrap(item.question.text, 36)
        for letter, choice in zip(LETTERS, item.question.choices, strict=False):
            mark = "*" if letter == item.question.answer else " "
            lines.append(f"{mark}{letter}. {choice}")
        canvas.multiline_text((x, y + side + 2), "\n".join(lines), fill="black", spacing=1)
    return sheet
