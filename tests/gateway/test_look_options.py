"""The options of `/v1/blur`: what each means, and a refusal that names the option and what to write instead."""

from typing import Any
from urllib.parse import parse_qsl

import cv2
import httpx
import numpy as np
import pytest

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_preprocess.compositing.look import Look
from blurfleet_preprocess.look_options import look_of


@pytest.mark.parametrize(
    ("query", "look", "form"),
    [
        ("", Look(), "jpeg"),
        ("radius=auto&focus=auto&mode=depth", Look(mode="depth"), "jpeg"),
        ("radius=12.5&style=disc&format=webp", Look(radius=12.5, style="disc"), "webp"),
        ("mode=depth&focus=0.25", Look(mode="depth", focus=0.25), "jpeg"),
        ("background=color&color=1a2B3c", Look(background="color", colour=(0x1A, 0x2B, 0x3C)), "jpeg"),
        ("background=transparent", Look(background="transparent"), "png"),
        ("background=transparent&format=webp", Look(background="transparent"), "webp"),
    ],
)
def test_options_are_read(query: str, look: Look, form: str) -> None:
    assert look_of(parse_qsl(query)) == (look, form)


@pytest.mark.parametrize(
    ("query", "where", "fix"),
    [
        ("radius=0.5", "radius", "use auto, or 50"),
        ("radius=201", "radius", "use auto, or 50"),
        ("radius=nan", "radius", "use auto, or 50"),
        ("radius=1e2", "radius", "use auto, or 50"),
        ("radius=-3", "radius", "use auto, or 50"),
        ("radius=٣", "radius", "use auto, or 50"),
        ("radius=3&radius=4", "radius", "give it once"),
        ("style=square", "style", "use gaussian"),
        ("mode=Depth", "mode", "use matte"),
        ("focus=0.5", "focus", "add mode=depth"),
        ("mode=depth&focus=1.1", "focus", "use auto, or 0.25"),
        ("mode=depth&background=transparent", "background", "leave it out or use blur"),
        ("format=gif", "format", "use jpeg"),
        ("background=transparent&format=jpeg", "format", "ask for png or webp"),
        ("background=none", "background", "use blur"),
        ("color=ff0000", "color", "add background=color"),
        ("background=color&color=red", "color", "write red as ff0000"),
        ("raduis=9", "query", "use radius, style, mode, focus, format, background, color"),
    ],
)
def test_a_bad_option_is_refused_by_name(query: str, where: str, fix: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        look_of(parse_qsl(query))
    assert (refused.value.reason, refused.value.where, refused.value.fix) == (Reason.INVALID_REQUEST, where, fix)
    assert refused.value.message


def test_over_http_it_is_a_problem_before_any_work_is_done(rig: Any, client: httpx.Client, photo: bytes) -> None:
    response = client.post("/v1/blur?background=none", content=photo)
    assert response.status_code == 400
    assert response.json()["where"] == "background"
    assert response.json()["fix"] == "use blur"
    assert rig.engines.asked == []


@pytest.mark.parametrize("form", ["png", "webp"])
def test_a_cut_out_over_http_has_its_alpha(client: httpx.Client, form: str) -> None:
    flat = bytes(cv2.imencode(".png", np.full((96, 128, 3), 77, np.uint8))[1])
    response = client.post(f"/v1/blur?background=transparent&format={form}", content=flat)
    assert response.headers["content-type"] == f"image/{form}"
    rgba = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_UNCHANGED)
    assert rgba.shape == (96, 128, 4)
    assert (rgba[48, 64, 3], rgba[1, 1, 3]) == (255, 0)


def test_a_colour_over_http_is_that_colour(client: httpx.Client, photo: bytes) -> None:
    response = client.post("/v1/blur?background=color&color=0a6432&format=png", content=photo)
    bgr = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_COLOR)
    assert bgr[1, 1].tolist() == [0x32, 0x64, 0x0A]


def test_depth_over_http_keeps_the_nearest_thing_sharp(client: httpx.Client) -> None:
    noise = np.random.default_rng(4).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    response = client.post("/v1/blur?mode=depth&radius=12&format=png", content=bytes(cv2.imencode(".png", noise)[1]))
    out = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(out[44:52, 44:52], noise[44:52, 44:52])
    assert out[:16, :16].std() < noise[:16, :16].std() / 4


@pytest.mark.parametrize(
    ("query", "where", "fix"),
    [
        ("format=png&format=npy", "format", "give it once"),
        ("fromat=npy", "query", "use format"),
        ("radius=9", "query", "use format"),
        ("format=jpeg", "format", "use png"),
    ],
)
def test_a_matte_has_one_option_and_no_other(
    rig: Any, client: httpx.Client, photo: bytes, query: str, where: str, fix: str
) -> None:
    said = client.post(f"/v1/matte?{query}", content=photo, headers={"accept": "application/x-npy"}).json()
    assert (said["status"], said["reason"], said["where"], said["fix"]) == (400, "InvalidRequest", where, fix)
    assert rig.engines.asked == []
