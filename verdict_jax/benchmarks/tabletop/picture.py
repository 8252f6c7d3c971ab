"""Pictures of tabletop scenes: solids in perspective, lit from the left, with shadows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from verdict_jax.benchmarks.tabletop.scene import SIDE, Color, Scene, Thing

PIXELS = 112
"""Height and width of a picture."""

OVERSAMPLING = 2
"""Lines and edges are drawn this much larger, then averaged."""

PAINT: dict[Color, tuple[int, int, int]] = {
    "red": (205, 45, 40),
    "green": (55, 150, 60),
    "blue": (45, 85, 200),
    "yellow": (225, 190, 45),
    "purple": (140, 60, 165),
    "white": (225, 225, 225),
}

RADIUS = {"small": 0.32, "large": 0.5}
"""Of a thing, in tiles."""

LIGHT = np.array([-0.65, 0.65, -0.4]) / np.linalg.norm([-0.65, 0.65, -0.4])
"""Towards the light: x to the right, y up, z away from the viewer."""

AMBIENT = 0.45
JITTER = 0.12
"""How far a thing stands off the middle of its tile, at most, in tiles."""

TABLE, LINES, WALL = (176, 148, 118), (148, 122, 96), (120, 128, 138)

CAMERA_HEIGHT, CAMERA_BACK, CAMERA_PITCH, FOCAL = 8.0, 3.4, np.deg2rad(51.0), 146.0

VISIBLE = 0.4
"""The least share of a thing that must not be hidden."""

Points = Float[np.ndarray, "points 3"]


class Face(NamedTuple):
    """One polygon on the screen, in pixels of the picture, with its colour."""

    corners: Float[np.ndarray, "points 2"]
    color: tuple[int, int, int]


def project(points: Points) -> Float[np.ndarray, "points 2"]:
    """Where points of the table's space appear: x from the left, y from the top, in pixels."""
    x, up, away = points[:, 0], points[:, 1] - CAMERA_HEIGHT, points[:, 2] + CAMERA_BACK
    sine, cosine = np.sin(CAMERA_PITCH), np.cos(CAMERA_PITCH)
    depth = away * cosine - up * sine
    height = up * cosine + away * sine
    return np.stack(
        [PIXELS / 2 + FOCAL * x / depth, PIXELS * 0.54 - FOCAL * height / depth], axis=-1
    )


def tile_centre(tile: tuple[int, int]) -> tuple[float, float]:
    """x and z of the middle of a tile; the table is centred on x = 0 and begins at z = 0."""
    column, row = tile
    return column - 0.5 - SIDE / 2, row - 0.5


@dataclass(frozen=True)
class Pose:
    """A thing as it stands in one picture.

    Attributes:
        thing: what it is.
        x, z: middle of its base.
        turn: of its sides, in radians.
    """

    thing: Thing
    x: float
    z: float
    turn: float

    def place(self, points: Points) -> Points:
        """Points around the middle of the base, in radii, in the table's space."""
        return points * RADIUS[self.thing.size] + np.array([self.x, 0.0, self.z])


@dataclass(frozen=True)
class Picture:
    """A rendered scene.

    Attributes:
        image: PIXELS x PIXELS, RGB.
        centres: x and y of the middle of each thing, in pixels, in the order of the scene.
        visible: the share of each thing that no other hides.
    """

    image: Image.Image
    centres: Float[np.ndarray, "things 2"]
    visible: Float[np.ndarray, "things"]


def _shade(color: Color, normal: np.ndarray) -> tuple[int, int, int]:
    strength = AMBIENT + (1 - AMBIENT) * max(0.0, float(normal @ LIGHT))
    red, green, blue = (int(min(255, part * strength * 1.15)) for part in PAINT[color])
    return red, green, blue


def _ring(height: float, radius: float, angles: np.ndarray) -> Points:
    return np.stack(
        [radius * np.cos(angles), np.full_like(angles, height), radius * np.sin(angles)], axis=-1
    )


def _faces(pose: Pose) -> list[Face]:
    """The visible polygons of a thing, far ones first."""
    thing = pose.thing
    if thing.shape == "ball":
        return _ball(pose)
    sides = 4 if thing.shape == "cube" else 16
    angles = pose.turn + 2 * np.pi * (np.arange(sides) + 0.5) / sides
    # a cube's corners stand as far out as makes it as wide as a ball
    radius = 1.15 if thing.shape == "cube" else 0.9
    height = {"cube": 1.6, "cylinder": 1.9, "cone": 2.3}[thing.shape]
    base = _ring(0.0, radius, angles)
    top = _ring(height, 0.0 if thing.shape == "cone" else radius, angles)
    faces = []
    for one, other in zip(range(sides), np.roll(range(sides), -1), strict=True):
        middle = angles[one] + np.pi / sides
        slope = radius / height if thing.shape == "cone" else 0.0
        normal = np.array([np.cos(middle), slope, np.sin(middle)])
        normal /= np.linalg.norm(normal)
        corners = np.stack([base[one], base[other], top[other], top[one]])
        faces.append((normal, corners))
    # those that look away are painted over by those that face the viewer
    faces.sort(key=lambda face: -face[1][:, 2].mean())
    if thing.shape != "cone":
        faces.append((np.array([0.0, 1.0, 0.0]), top))
    return [
        Face(project(pose.place(corners)), _shade(thing.color, normal)) for normal, corners in faces
    ]


def _ball(pose: Pose) -> list[Face]:
    radius = RADIUS[pose.thing.size]
    centre, edge = project(np.array([[pose.x, radius, pose.z], [pose.x + radius, radius, pose.z]]))
    width = edge[0] - centre[0]
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    faces = []
    for share in (1.0, 0.85, 0.68, 0.5, 0.3):
        towards = centre + (1 - share) * width * np.array([-0.6, -0.6])
        # the rim looks sideways, the middle of the highlight at the light
        normal = LIGHT * (1.05 - share)
        faces.append(Face(towards + share * width * circle, _shade(pose.thing.color, normal)))
    return faces


def _shadow(pose: Pose) -> Float[np.ndarray, "points 2"]:
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    ring = _ring(0.0, 1.0, angles) * np.array([1.35, 1.0, 1.0]) + np.array([0.7, 0.0, 0.35])
    return project(pose.place(ring))


def _draw(canvas: ImageDraw.ImageDraw, corners: np.ndarray, fill: object) -> None:
    canvas.polygon([(float(x), float(y)) for x, y in corners], fill=fill)  # pyright: ignore


@functools.cache
def _table() -> Image.Image:
    size = PIXELS * OVERSAMPLING
    image = Image.new("RGB", (size, size), WALL)
    canvas = ImageDraw.Draw(image)
    half = SIDE / 2
    corners = np.array([[-half, 0, 0], [half, 0, 0], [half, 0, SIDE], [-half, 0, SIDE]])
    _draw(canvas, project(corners) * OVERSAMPLING, TABLE)
    for line in range(SIDE + 1):
        ends = np.array([[line - half, 0, 0], [line - half, 0, SIDE]])
        across = np.array([[-half, 0, line], [half, 0, line]])
        for pair in (ends, across):
            points = [tuple(point) for point in project(pair.astype(float)) * OVERSAMPLING]
            canvas.line(points, fill=LINES, width=OVERSAMPLING)
    return image


def draw_poses(scene: Scene, rng: np.random.Generator) -> tuple[Pose, ...]:
    """Each thing somewhat off the middle of its tile, turned at random."""
    poses = []
    for thing in scene.things:
        x, z = tile_centre(thing.tile)
        dx, dz = rng.uniform(-JITTER, JITTER, size=2)
        poses.append(Pose(thing, x + dx, z + dz, float(rng.uniform(0, np.pi / 2))))
    return tuple(poses)


def visible_shares(polygons: list[list[np.ndarray]]) -> Float[np.ndarray, "things"]:
    """The share of each thing's pixels that those painted after it leave to be seen."""
    together = Image.new("L", (PIXELS, PIXELS))
    canvas = ImageDraw.Draw(together)
    alone = []
    for number, own in enumerate(polygons, start=1):
        single = Image.new("L", (PIXELS, PIXELS))
        for corners in own:
            _draw(canvas, corners, number)
            _draw(ImageDraw.Draw(single), corners, 1)
        alone.append(np.asarray(single).sum())
    counts = np.bincount(np.asarray(together).reshape(-1), minlength=len(polygons) + 1)[1:]
    return counts / np.maximum(alone, 1)


def render(scene: Scene, rng: np.random.Generator) -> Picture:
    """A picture of a scene, with places, turns, brightness and noise drawn at random.

    Args:
        scene: what to show.
        rng: advanced in place.
    """
    poses = draw_poses(scene, rng)
    order = sorted(range(len(poses)), key=lambda i: -poses[i].z)
    faces = [_faces(pose) for pose in poses]
    shares = np.zeros(len(poses))
    shares[order] = visible_shares([[face.corners for face in faces[i]] for i in order])
    image = _table().copy()
    shadows = Image.new("L", image.size)
    for pose in poses:
        _draw(ImageDraw.Draw(shadows), _shadow(pose) * OVERSAMPLING, 90)
    image.paste((60, 48, 38), mask=shadows)
    canvas = ImageDraw.Draw(image)
    for i in order:
        for face in faces[i]:
            _draw(canvas, face.corners * OVERSAMPLING, face.color)
    small = np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.BOX), np.float32)
    noisy = small * rng.uniform(0.85, 1.1) + rng.normal(0, 7, small.shape)
    centres = np.stack([project(pose.place(np.array([[0.0, 0.9, 0.0]])))[0] for pose in poses])
    pixels: UInt8[np.ndarray, "rows columns 3"] = np.clip(noisy, 0, 255).astype(np.uint8)
    return Picture(Image.fromarray(pixels), centres, shares)
