"""Composites whose truth is known: one photograph before another by a soft matte, and that with the back blurred."""

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from skimage import data
from sklearn.datasets import load_sample_image

from blurfleet_preprocess.compositing.light import to_levels, to_light

Array = Any
RADIUS = 45.0
PAIRS = (("astronaut", "china"), ("coffee", "flower"), ("chelsea", "coffee"), ("flower", "china"))


@dataclass(frozen=True)
class Composite:
    """`matte` [H,W] is the true alpha, `small` what a faultless network of 320x320 would say of it.

    `back` is the background alone; `truth` the subject before `back` blurred by RADIUS, mixed in linear light.
    """

    picture: Array
    back: Array
    matte: Array
    small: Array
    truth: Array


def composite(front: str, back: str, size: tuple[int, int] = (1080, 1920)) -> Composite:
    """Return `front` before `back`, both photographs that scikit-image or scikit-learn bring along."""
    before, behind, matte = photograph(front, size), photograph(back, size), soft_matte(size)
    alpha, light, far = matte[..., None], to_light(before), to_light(behind)
    blurred = cv2.GaussianBlur(far, (0, 0), RADIUS / 2)
    return Composite(
        picture=to_levels(far + alpha * (light - far)),
        back=behind,
        matte=matte,
        small=cv2.resize(matte, (320, 320), interpolation=cv2.INTER_AREA),
        truth=to_levels(blurred + alpha * (light - blurred)),
    )


def photograph(name: str, size: tuple[int, int]) -> Array:
    """Return a photograph, enlarged and cut to (height, width)."""
    rgb = load_sample_image(f"{name}.jpg") if name in ("china", "flower") else getattr(data, name)()
    scale = max(size[0] / rgb.shape[0], size[1] / rgb.shape[1])
    grown = cv2.resize(rgb, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    return np.ascontiguousarray(grown[: size[0], : size[1]])


def soft_matte(size: tuple[int, int]) -> Array:
    """Return the alpha [H,W] of head, shoulders and 120 loose hairs, with a camera's soft edges."""
    height, width = size
    alpha = np.zeros(size, np.float32)
    draw = np.random.default_rng(7)
    head, reach = (width // 2, int(height * 0.26)), height * 0.17
    cv2.ellipse(alpha, (width // 2, int(height * 0.75)), (int(width * 0.16), int(height * 0.4)), 0, 0, 360, 1.0, -1)
    cv2.circle(alpha, head, int(reach), 1.0, -1)
    for angle in draw.uniform(np.pi, 2 * np.pi, 120):
        root, tip = angle, angle + draw.normal(0, 0.08)
        long = reach + height * draw.uniform(0.02, 0.07)
        start = (head[0] + 0.97 * reach * np.cos(root), head[1] + 0.97 * reach * np.sin(root))
        end = (head[0] + long * np.cos(tip), head[1] + long * np.sin(tip))
        points = [(int(x), int(y)) for x, y in (start, end)]
        cv2.line(alpha, points[0], points[1], draw.uniform(0.4, 0.9), max(1, height // 500), cv2.LINE_AA)
    return np.clip(cv2.GaussianBlur(alpha, (0, 0), height / 600), 0, 1)


def usual_recipe(picture: Array, small: Array) -> Array:
    """Return what most tutorials do: blur everything at full size, choose by the enlarged matte with np.where."""
    matte = cv2.resize(small, picture.shape[1::-1])
    return np.where(matte[..., None] > 0.5, picture, cv2.GaussianBlur(picture, (0, 0), RADIUS / 2))


def soft_recipe(picture: Array, small: Array) -> Array:
    """Return what better tutorials do: the same with a weighted mean of picture and blur."""
    alpha = cv2.resize(small, picture.shape[1::-1])[..., None]
    return (picture * alpha + cv2.GaussianBlur(picture, (0, 0), RADIUS / 2) * (1 - alpha)).astype(np.uint8)


def halo_energy(result: Array, made: Composite) -> float:
    """Return the mean squared difference from the truth, in levels, from inside the edge to a radius outside it."""
    reach = np.ones((61, 61), np.uint8)
    around = cv2.dilate((made.matte > 0.02).astype(np.uint8), reach).astype(bool)
    inside = cv2.erode((made.matte > 0.98).astype(np.uint8), reach[:21, :21]).astype(bool)
    return float(np.square(result.astype(np.float32) - made.truth)[around & ~inside].mean())


def glow_energy(result: Array, made: Composite) -> float:
    """Return the same only where there is nothing of the subject: what is left there is its glow."""
    around = cv2.dilate((made.matte > 0.02).astype(np.uint8), np.ones((61, 61), np.uint8)).astype(bool)
    return float(np.square(result.astype(np.float32) - made.truth)[around & (made.matte <= 0)].mean())
