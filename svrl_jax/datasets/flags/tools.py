"""The search tools of the world of flags."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

from PIL import Image
from transformers import PreTrainedTokenizerFast

from svrl_jax.datasets.flags.excerpts import SHOWN, excerpt
from svrl_jax.datasets.flags.world import World
from svrl_jax.rollout import Tools
from svrl_jax.search.image_index import IndexedImage, LocalImageIndex
from svrl_jax.search.local_index import LocalIndex
from svrl_jax.search.protocol import ImageHit, TextTool
from svrl_jax.trajectory import Snippet
from verdict_jax.vlm.tokenizer import plain_ids


@dataclass(frozen=True)
class ExcerptSearch:
    """A text search whose hits are cut to what stands around the query.

    Attributes:
        tool: finds them.
        tokenizer: counts tokens.
        shown: the most tokens of a hit's text.
        name: the tool's.
        version: of tool, tokenizer and length.
    """

    tool: TextTool
    tokenizer: PreTrainedTokenizerFast
    shown: int
    name: str
    version: str

    @staticmethod
    def of(tool: TextTool, tokenizer: PreTrainedTokenizerFast, shown: int = SHOWN) -> ExcerptSearch:
        """Excerpts of a tool's hits."""
        vocabulary = tokenizer.backend_tokenizer.to_str().encode()
        digest = hashlib.sha256(vocabulary).hexdigest()[:16]
        version = f"{tool.version} excerpts {shown} {digest}"
        return ExcerptSearch(tool, tokenizer, shown, tool.name, version)

    def search(self, query: str, top_k: int) -> tuple[Snippet, ...]:
        """As the tool's."""

        @functools.cache
        def count(text: str) -> int:
            return len(plain_ids(self.tokenizer, text))

        hits = self.tool.search(query, top_k)
        return tuple(excerpt(hit, query, count, self.shown) for hit in hits)


def flags_tools(world: World, tokenizer: PreTrainedTokenizerFast) -> Tools:
    """Text search over the world's snippets, image search over its flags; takes seconds."""
    flags = [
        IndexedImage(
            ImageHit(country.code, f"Flag of {country.name}", f"{country.code}.png", "flag-icons"),
            Image.fromarray(flag),
        )
        for country, flag in zip(world.countries, world.flags, strict=True)
    ]
    text = ExcerptSearch.of(LocalIndex(world.snippets, "flags"), tokenizer)
    return Tools(text, LocalImageIndex(flags, "flags"))
