"""The page at `/`, in a real headless Chromium that can reach nothing but the gateway."""

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import httpx
import numpy as np
import pytest
from skimage import data

from blurfleet.api.contract import contract_at
from blurfleet.serving.routing import RoutedEngine
from blurfleet_forge.fold import to_bytes
from blurfleet_forge.recipe import load_recipe
from blurfleet_forge.workpiece import Workpiece
from blurfleet_preprocess.access import Access, TokenFile

ROOT = Path(__file__).parents[3]
Rig = Any  # the fixtures' classes live in the conftest files
Tab = Any
Opened = Callable[[], Tab]
FACTS = ("engine", "precision", "role", "epoch", "contract", "trace")


@pytest.fixture
def photo_file(tmp_path: Path) -> Path:
    """A smooth picture of 96x72, so that decoders differ little."""
    rgb = cv2.GaussianBlur(np.random.default_rng(3).integers(0, 256, (72, 96, 3), dtype=np.uint8), (0, 0), 4)
    path = tmp_path / "photo.png"
    path.write_bytes(bytes(cv2.imencode(".png", rgb)[1]))
    return path


def shown(tab: Tab, image: str) -> np.ndarray:
    found = tab.pixels(image)
    return np.array(found["data"], np.uint8).reshape(found["height"], found["width"], 4)


def decoded(data: bytes) -> np.ndarray:
    bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)


def answered(tab: Tab) -> None:
    tab.until("said.innerText.startsWith('Answered')")


def test_a_chosen_picture_is_shown_with_its_matte_its_result_and_who_answered(
    opened: Opened, client: httpx.Client, photo_file: Path
) -> None:
    tab = opened()
    tab.choose_file(photo_file)
    answered(tab)
    photo = photo_file.read_bytes()
    np.testing.assert_array_equal(shown(tab, "original")[..., :3], decoded(photo))
    np.testing.assert_array_equal(
        shown(tab, "matte")[..., :3], decoded(client.post("/v1/matte", content=photo).content)
    )
    result = decoded(client.post("/v1/blur", content=photo).content).astype(int)
    assert np.abs(shown(tab, "result")[..., :3].astype(int) - result).max() <= 3  # two JPEG decoders
    headers = tab.answered("/v1/blur")[-1]["headers"]
    assert {name: tab.text(f"#fact-{name}") for name in FACTS} == {n: headers[f"x-blurfleet-{n}"] for n in FACTS}
    assert tab.js("simulated.checkVisibility()")
    assert "infer" in tab.text("#fact-time")
    assert tab.complaints() == []


def test_a_picture_can_be_dropped_anywhere(opened: Opened, photo_file: Path) -> None:
    tab = opened()
    tab.drop_file(photo_file)
    answered(tab)
    assert shown(tab, "result").shape == (72, 96, 4)


def test_what_the_gateway_refuses_is_said_in_sentences(opened: Opened, client: httpx.Client, tmp_path: Path) -> None:
    torn = tmp_path / "torn.png"
    torn.write_bytes(bytes(cv2.imencode(".png", np.zeros((64, 64, 3), np.uint8))[1])[:60])
    tab = opened()
    tab.choose_file(torn)
    tab.until("!problem.hidden")
    said = client.post("/v1/matte", content=torn.read_bytes()).json()
    text = tab.text("#problem")
    assert said["detail"].lower() in text.lower()
    assert text.endswith(".")
    assert text[0].isupper()
    assert tab.js("problem.getAttribute('role')") == "alert"
    assert not tab.js("result.checkVisibility()")


def test_no_engine_is_a_sentence_with_what_helps(rig: Rig, opened: Opened, photo_file: Path) -> None:
    tab = opened()
    rig.engines_behave("with NaN", "with NaN")
    tab.choose_file(photo_file)
    tab.until("!problem.hidden")
    assert tab.text("#problem").startswith("The matte was withheld")
    assert tab.text("#problem").endswith("What helps: try again.")
    rig.engines_behave("with NaN")
    tab.choose_file(photo_file)
    answered(tab)
    assert tab.js("problem.hidden")
    assert "NonFiniteOutput" in tab.text("#withheld")
    assert tab.text("#fact-role") == "Fallback"


def test_everything_can_be_done_with_the_keyboard(opened: Opened, photo_file: Path) -> None:
    tab = opened()
    tab.choose_file(photo_file)  # a file dialogue is the browser's own
    answered(tab)
    for element in ("file", "camera", "background", "style", "mode", "auto"):
        tab.tab_to(element)
    tab.press(" ")
    tab.press("Tab")
    assert tab.js("document.activeElement.id") == "radius"
    tab.press("ArrowRight", 5)
    assert tab.text("#radius-said") == "35 pixels"
    tab.until("performance.getEntriesByType('resource').some((one) => one.name.includes('radius=35'))")
    tab.js("background.focus()")
    tab.press("ArrowDown")
    assert tab.js("background.value") == "color"
    tab.until("performance.getEntriesByType('resource').some((one) => one.name.includes('color=20506e'))")
    answered(tab)
    corner = shown(tab, "result")[1, 1, :3].astype(int)
    assert np.abs(corner - (0x20, 0x50, 0x6E)).max() <= 3
    assert not tab.js("radius.checkVisibility()")


def test_a_transparent_background_is_shown_and_can_be_saved(opened: Opened, photo_file: Path) -> None:
    tab = opened()
    tab.js("background.value = 'transparent'; background.dispatchEvent(new Event('input', { bubbles: true }))")
    tab.choose_file(photo_file)
    answered(tab)
    result = shown(tab, "result")
    assert (result[1, 1, 3], result[36, 48, 3]) == (0, 255)
    assert tab.js("save.download") == "blurred.webp"


def test_the_camera_is_a_stream_that_follows_a_swap(
    rig: Rig, opened: Opened, client: httpx.Client, until: Callable[..., None]
) -> None:
    tab = opened()
    tab.tab_to("camera")
    tab.press("Enter")
    tab.until("result.naturalWidth > 0 && result.checkVisibility()")
    assert tab.text("#fact-engine") == rig.primary.engine
    assert tab.js("camera.getAttribute('aria-pressed')") == "true"
    assert shown(tab, "matte").shape == shown(tab, "result").shape == shown(tab, "original").shape
    until(lambda: len(rig.told.samples) >= 5, what="five frames")
    rig.route(serving="Fallback", epoch=8)
    tab.until("document.getElementById('fact-epoch').innerText === '8'")
    assert (tab.text("#fact-engine"), tab.text("#fact-role")) == (rig.fallback.engine, "Fallback")
    tab.until("!document.getElementById('flicker-row').hidden")
    tab.press("Enter")
    tab.until("said.innerText.includes('frames answered')")
    assert tab.js("camera.getAttribute('aria-pressed')") == "false"
    assert tab.js("problem.hidden")
    ids = [sample.frame_id for sample in rig.told.samples]
    assert ids == sorted(ids)
    assert len({sample.stream for sample in rig.told.samples}) == 1
    until(lambda: rig.count("blurfleet_streams_open") == 0)
    assert tab.complaints() == []


def camera_on(tab: Tab) -> None:
    tab.js("camera.click()")
    tab.until("said.innerText.startsWith('The camera is on')")


def asks_before_the_camera(tab: Tab) -> None:
    """Hold what the browser grants until `grant()`; `tracks` is what the page got."""
    tab.js(
        """(() => {
          const real = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
          const granted = new Promise((resolve) => { window.grant = resolve; });
          window.tracks = [];
          navigator.mediaDevices.getUserMedia = async (wish) => {
            window.waiting = true;
            await granted;
            const media = await real(wish);
            window.tracks.push(...media.getTracks());
            return media;
          };
        })()"""
    )


def test_a_picture_turns_the_camera_off_and_options_then_ask_for_the_picture(
    rig: Rig, opened: Opened, photo_file: Path, until: Callable[..., None]
) -> None:
    tab = opened()
    camera_on(tab)
    tab.choose_file(photo_file)
    answered(tab)
    assert (tab.text("#camera"), tab.js("camera.ariaPressed")) == ("Use the camera", "false")
    until(lambda: rig.count("blurfleet_streams_open") == 0)
    tab.js("auto.click()")
    tab.until("performance.getEntriesByType('resource').some((one) => one.name.includes('radius=30'))")
    answered(tab)
    assert sum(url.startswith("ws:") for url in tab.requested()) == 1
    assert tab.complaints() == []


@pytest.mark.parametrize("instead", ["stop", "a picture"])
def test_a_camera_granted_after_it_was_stopped_is_let_go_of_and_sends_nothing(
    opened: Opened, photo_file: Path, instead: str
) -> None:
    tab = opened()
    asks_before_the_camera(tab)
    tab.js("camera.click()")
    tab.until("window.waiting")
    if instead == "stop":
        tab.js("camera.click()")
        assert tab.text("#said") == "The camera is off."
    else:
        tab.choose_file(photo_file)
        answered(tab)
    assert tab.text("#camera") == "Use the camera"
    tab.js("grant()")
    tab.until("window.tracks.length > 0 && window.tracks.every((one) => one.readyState === 'ended')")
    tab.js("new Promise((resolve) => setTimeout(resolve, 300))")
    assert not any(url.startswith("ws:") for url in tab.requested())
    assert tab.text("#said").startswith("The camera is off" if instead == "stop" else "Answered")


def test_a_stream_that_is_not_opened_asks_for_a_token_only_where_one_is_missing(
    rig: Rig, serve: Any, tab: Tab, tmp_path: Path
) -> None:
    elsewhere = """window.WebSocket = class extends WebSocket {
        constructor(address, offered) { super(address.replace("/v1/stream", "/v1/nothing"), offered); } }; 0"""
    (tmp_path / "tokens").write_text(f"desk: sha256:{hashlib.sha256(b'open-sesame').hexdigest()}\n")
    said = []
    for tokens in (None, TokenFile(tmp_path / "tokens")):
        with serve(rig, access=Access(tokens)) as client:
            tab.open(f"{client.base_url}/")
            tab.js(elsewhere)
            tab.js("camera.click()")
            tab.until("!problem.hidden")
            said.append((tab.text("#problem").split(".")[0], tab.js("door.hidden"), tab.text("#camera")))
    assert said == [
        ("The stream was not opened", True, "Use the camera"),
        ("The bearer token is missing", False, "Use the camera"),
    ]


def test_no_request_leaves_the_gateway_and_none_could(opened: Opened, client: httpx.Client, photo_file: Path) -> None:
    tab = opened()
    tab.choose_file(photo_file)
    answered(tab)
    asked = tab.requested()
    assert len(asked) >= 8
    assert {httpx.URL(url).netloc for url in asked} == {client.base_url.netloc}
    refused = tab.js(
        """new Promise((heard) => {
          addEventListener('securitypolicyviolation', (event) => heard(event.effectiveDirective));
          fetch('http://127.0.0.2:9/').catch(() => {});
        })"""
    )
    assert refused == "connect-src"


def test_every_control_has_a_name_and_every_text_enough_contrast(opened: Opened, photo_file: Path) -> None:
    tab = opened()
    tab.choose_file(photo_file)
    answered(tab)
    tree = tab.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "combobox", "slider", "checkbox", "textbox", "image", "link", "ColorWell"}
    controls = [node for node in tree if not node.get("ignored") and node["role"]["value"] in roles]
    unnamed = [node for node in controls if not node.get("name", {}).get("value")]
    assert len(controls) >= 10
    assert unnamed == []
    for scheme in ("light", "dark"):
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        for selector in ("body", ".said", ".drop span", "button", "legend", "dt", "dd", "footer", ".badge", ".node"):
            assert tab.js(CONTRAST % selector) >= 4.5, (scheme, selector)


CONTRAST = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (one) => { const [r, g, b] = one.map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  let element = document.querySelector('%s');
  const ink = rgb(getComputedStyle(element).color);
  while (rgb(getComputedStyle(element).backgroundColor)[3] === 0) element = element.parentElement;
  const [a, b] = [light(ink), light(rgb(getComputedStyle(element).backgroundColor))].sort((x, y) => y - x);
  return (a + .05) / (b + .05);
})()"""  # noqa: E501 - a line of JavaScript


def test_who_has_no_token_is_asked_for_one(rig: Rig, serve: Any, tab: Tab, photo_file: Path, tmp_path: Path) -> None:
    hashed = hashlib.sha256(b"open-sesame").hexdigest()
    (tmp_path / "tokens").write_text(f"desk: sha256:{hashed}\n")
    with serve(rig, access=Access(TokenFile(tmp_path / "tokens"))) as client:
        tab.open(f"{client.base_url}/")
        tab.choose_file(photo_file)
        tab.until("!problem.hidden")
        assert "The bearer token is missing." in tab.text("#problem")
        tab.tab_to("token")
        tab.call("Input.insertText", text="open-sesame")
        tab.press("Enter")
        answered(tab)
        assert tab.js("problem.hidden && door.hidden")
        tab.js("camera.click()")
        tab.until("said.innerText.startsWith('The camera is on')")
        tab.js("camera.click()")
        tab.until("said.innerText.includes('frames answered')")


def test_a_screenshot_for_people(rig: Rig, opened: Opened, tmp_path: Path) -> None:
    """A photograph through the real network, as a node shows it; `out/page.png` is left to look at."""
    piece = Workpiece(load_recipe(ROOT / "model_repo/bokeh-u2netp/recipe.yaml"))
    digest = hashlib.sha256(to_bytes(piece.network())).hexdigest()
    engine = RoutedEngine(engine=f"bokeh__{digest[:12]}", digest=f"sha256:{digest}", precision="FP32")
    rig.engines.behaviours |= dict.fromkeys((engine.engine, "bokeh"), piece.oracle().run)
    rig.route(primary=engine, fallback=None, epoch=1)
    route = rig.table.models["bokeh"]
    rig.table = rig.table.with_route(route.model_copy(update={"contract": contract_at(160)}))
    photo = tmp_path / "astronaut.png"
    photo.write_bytes(bytes(cv2.imencode(".png", cv2.cvtColor(data.astronaut(), cv2.COLOR_RGB2BGR))[1]))
    tab = opened()
    tab.choose_file(photo)
    answered(tab)
    matte = shown(tab, "matte")[..., 0]
    assert (matte[120, 225] > 240, matte[60, 480] < 15) == (True, True)  # her face, the wall
    tab.js("Promise.all([...document.images].map((one) => one.src ? one.decode() : 0))")
    shot = base64.b64decode(tab.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out/page.png").write_bytes(shot)
    image = cv2.imdecode(np.frombuffer(shot, np.uint8), cv2.IMREAD_COLOR)
    assert image.shape[1] >= 1200
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 5000  # photographs, not an empty page
