"""Says of any step about a tabletop scene in what way, if any, it is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verdict_jax.benchmarks.examples import Break, StepVerdict
from verdict_jax.benchmarks.tabletop.language import (
    Answer,
    Aside,
    Chosen,
    Ended,
    Furthest,
    Located,
    Meaning,
    Nearest,
    Related,
    Seen,
    Stepped,
    Walked,
    meaning_of,
    name_text,
    related_text,
)
from verdict_jax.benchmarks.tabletop.questions import Asked, choose, relation, right_choice
from verdict_jax.benchmarks.tabletop.scene import (
    Name,
    Scene,
    Size,
    Thing,
    Tile,
    offset_towards,
    steps_between,
)


@dataclass(frozen=True)
class Known:
    """What accepted steps claim; where they contradict each other, what was claimed first."""

    steps: tuple[Meaning, ...]
    tiles: dict[Name, Tile]
    names: dict[Tile, Name]
    sizes: dict[Tile, Size]

    @property
    def walked(self) -> tuple[Walked, ...]:
        return tuple(step for step in self.steps if isinstance(step, Walked))

    def first(self, *kinds: type[Meaning]) -> Meaning | None:
        """The first step of one of these kinds."""
        return next((step for step in self.steps if isinstance(step, kinds)), None)

    def allows(self, name: Name, tile: Tile, size: Size | None = None) -> bool:
        """True where nothing claimed so far forbids a thing there."""
        return (
            self.tiles.get(name, tile) == tile
            and self.names.get(tile, name) == name
            and (size is None or self.sizes.get(tile, size) == size)
        )


def known(accepted: Sequence[Meaning]) -> Known:
    """What accepted steps claim."""
    tiles: dict[Name, Tile] = {}
    names: dict[Tile, Name] = {}
    sizes: dict[Tile, Size] = {}
    for step in accepted:
        if isinstance(step, Located | Stepped | Walked | Seen):
            tiles.setdefault(step.name, step.tile)
            names.setdefault(step.tile, step.name)
        if isinstance(step, Walked | Seen):
            sizes.setdefault(step.tile, step.size)
    return Known(tuple(accepted), tiles, names, sizes)


def _stands(scene: Scene, name: Name, tile: Tile, size: Size | None = None) -> bool:
    thing = scene.by_tile.get(tile)
    return thing is not None and thing.name == name and size in (None, thing.size)


def is_grounded(meaning: Meaning, asked: Asked, scene: Scene, accepted: Known) -> bool:
    """True unless the step claims what the scene does not show, a wrong answer included.

    What comes next in a walk goes by the last tile walked, so that after a wrong step the walk can
    go on rightly.
    """
    last = accepted.walked[-1].tile if accepted.walked else None
    match meaning:
        case Located(name, tile):
            return _stands(scene, name, tile)
        case Stepped(name, tile, steps):
            reference = scene.by_name[asked.reference].tile if asked.names else None
            return (
                _stands(scene, name, tile)
                and reference is not None
                and steps_between(reference, tile) == steps
            )
        case Related():
            if asked.family != "relation":
                return False
            return relation(*(scene.by_name[name].tile for name in asked.names)) == meaning
        case Chosen(name, extreme):
            if asked.family not in ("depth", "distance"):
                return False
            return name in scene.by_name and _is_chosen(asked, scene, name, extreme)
        case Walked(size, name, tile, counts, _):
            if not _stands(scene, name, tile, size):
                return False
            reference = scene.by_name[asked.reference].tile if asked.names else None
            upcoming = scene.after(last)
            return (
                bool(upcoming)
                and upcoming[0].tile == tile
                and counts == asked.counts(upcoming[0], reference)
            )
        case Ended(count):
            return not scene.after(last) and count == _true_count(asked, scene)
        case Furthest(direction, tile):
            thing = scene.furthest(direction)
            return thing is not None and thing.tile == tile
        case Nearest(tile, steps):
            thing = scene.nearest(asked.reference) if asked.names else None
            if thing is None:
                return False
            reference = scene.by_name[asked.reference].tile
            return thing.tile == tile and steps_between(reference, tile) == steps
        case Seen(tile, size, name):
            return _stands(scene, name, tile, size)
        case Answer(choice):
            return choice == right_choice(asked, scene)
        case Aside():
            return True


def _is_chosen(asked: Asked, scene: Scene, name: Name, extreme: str) -> bool:
    if extreme != (asked.extreme or "fewest"):
        return False
    tiles = [scene.by_name[option].tile for option in asked.options]
    reference = scene.by_name[asked.reference].tile if asked.family == "distance" else None
    chosen = choose(asked, tiles, reference)
    return chosen is not None and asked.options[chosen] == name


def _true_count(asked: Asked, scene: Scene) -> int:
    reference = scene.by_name[asked.reference].tile if asked.names else None
    return sum(asked.counts(thing, reference) for thing in scene.things)


def fits(meaning: Meaning, asked: Asked, accepted: Known) -> bool:
    """True where a step repeats and contradicts nothing, and what it concludes follows."""
    if meaning in accepted.steps or accepted.first(Answer) is not None:
        return False
    reference = accepted.tiles.get(asked.names[0]) if asked.names else None
    match meaning:
        case Located(name, tile):
            return accepted.allows(name, tile)
        case Stepped(name, tile, steps):
            return (
                accepted.allows(name, tile)
                and reference is not None
                and steps_between(reference, tile) == steps
            )
        case Related():
            places = [accepted.tiles.get(name) for name in asked.names]
            if asked.family != "relation" or None in places:
                return False
            return relation(*(place for place in places if place is not None)) == meaning
        case Chosen(name, extreme):
            if asked.family not in ("depth", "distance"):
                return False
            if extreme != (asked.extreme or "fewest") or accepted.first(Chosen) is not None:
                return False
            tiles = [accepted.tiles[o] for o in asked.options if o in accepted.tiles]
            if len(tiles) < len(asked.options):
                return False
            chosen = choose(asked, tiles, reference)
            return chosen is not None and asked.options[chosen] == name
        case Walked(size, name, tile, counts, count):
            if accepted.first(Ended) is not None or not accepted.allows(name, tile, size):
                return False
            before = accepted.walked[-1] if accepted.walked else None
            if before is not None and before.tile >= tile:
                return False
            if asked.family == "count_beside" and reference is None:
                return False
            counted = asked.counts(Thing(tile, *name, size), reference)
            return counts == counted and count == (before.count if before else 0) + counts
        case Ended(count):
            walked = accepted.walked
            return bool(walked) and accepted.first(Ended) is None and count == walked[-1].count
        case Furthest(direction, tile):
            if accepted.first(Furthest) is not None:
                return False
            offset = offset_towards(tile, direction)
            return all(
                offset_towards(other, direction) < offset
                for other in accepted.names
                if other != tile
            )
        case Nearest(tile, steps):
            if reference is None or tile == reference or accepted.first(Nearest) is not None:
                return False
            return steps_between(reference, tile) == steps and all(
                steps_between(reference, other) > steps
                for other in accepted.names
                if other not in (reference, tile)
            )
        case Seen(tile, size, name):
            return accepted.allows(name, tile, size)
        case Answer(choice):
            return choice < len(asked.choices) and asked.choices[choice] == _concluded(
                asked, accepted
            )
        case Aside():
            return True


def _found(accepted: Known) -> Tile | None:
    """The tile to which the accepted steps have led."""
    step = accepted.first(Furthest, Nearest)
    return step.tile if isinstance(step, Furthest | Nearest) else None


def _concluded(asked: Asked, accepted: Known) -> str | None:
    """The answer that the accepted steps lead to."""
    match asked.family:
        case "count" | "count_beside":
            step = accepted.first(Ended)
            return str(step.count) if isinstance(step, Ended) else None
        case "relation":
            step = accepted.first(Related)
            return related_text(step.side, step.depth) if isinstance(step, Related) else None
        case "depth" | "distance":
            step = accepted.first(Chosen)
            return name_text(step.name) if isinstance(step, Chosen) else None
        case "attribute" | "neighbour":
            tile = _found(accepted)
            name = None if tile is None else accepted.names.get(tile)
            return None if name is None else name[0 if asked.attribute == "color" else 1]


def is_on_topic(meaning: Meaning, asked: Asked, accepted: Known) -> bool:
    """True where a step is of the kind that the question calls for, about what it names."""
    match meaning:
        case Located(name, _):
            # in a question of distance only the thing measured from is merely located
            return name in (asked.names[:1] if asked.family == "distance" else asked.names)
        case Stepped(name, _, _):
            return asked.family == "distance" and name in asked.options
        case Related():
            return asked.family == "relation"
        case Chosen(name, extreme):
            return (
                asked.family in ("depth", "distance")
                and name in asked.options
                and extreme == (asked.extreme or "fewest")
            )
        case Walked() | Ended():
            return asked.family in ("count", "count_beside")
        case Furthest(direction, _):
            return asked.family == "attribute" and direction == asked.direction
        case Nearest():
            return asked.family == "neighbour"
        case Seen(tile, _, _):
            if asked.family not in ("attribute", "neighbour"):
                return False
            return _found(accepted) in (None, tile)
        case Answer():
            return True
        case Aside():
            return False


def check_meaning(
    meaning: Meaning, asked: Asked, scene: Scene, accepted: Sequence[Meaning]
) -> StepVerdict:
    """The labels of a step.

    Grounded goes by the picture and logical by the accepted steps: after a wrong accepted step
    the right answer is grounded but illogical, and the wrong one that follows is logical but
    ungrounded.

    Args:
        meaning: what the step says.
        asked: what the question asks.
        scene: what the picture shows.
        accepted: what the steps before it say.
    """
    claims = known(accepted)
    return StepVerdict(
        grounded=is_grounded(meaning, asked, scene, claims),
        logical=fits(meaning, asked, claims),
        on_topic=is_on_topic(meaning, asked, claims),
    )


UNREADABLE = StepVerdict(grounded=False, logical=False, on_topic=False)
"""The labels of a step outside the language."""


def check_step(step: str, asked: Asked, scene: Scene, accepted: Sequence[str]) -> StepVerdict:
    """The labels of a step that was written as text; UNREADABLE outside the language.

    Accepted steps outside the language claim nothing.

    Args:
        step: the step without its delimiter.
        asked: what the question asks.
        scene: what the picture shows.
        accepted: the steps before it.
    """
    meaning = meaning_of(step)
    if meaning is None:
        return UNREADABLE
    said = [claim for claim in map(meaning_of, accepted) if claim is not None]
    return check_meaning(meaning, asked, scene, said)


@dataclass(frozen=True)
class Fault:
    """The first wrong step of a chain.

    Attributes:
        step: its place, from 0; the length of the chain if it merely lacks an answer.
        kind: in what way it is broken; "unfinished" if the answer is lacking.
    """

    step: int
    kind: Break | str


def first_fault(steps: Sequence[str], asked: Asked, scene: Scene) -> Fault | None:
    """The first step of a chain that is broken in any way; None for a right chain."""
    for index, step in enumerate(steps):
        if meaning_of(step) is None:
            return Fault(index, "unreadable")
        verdict = check_step(step, asked, scene, steps[:index])
        if verdict.broken != "none":
            return Fault(index, verdict.broken)
    if not steps or not isinstance(meaning_of(steps[-1]), Answer):
        return Fault(len(steps), "unfinished")
    return None
