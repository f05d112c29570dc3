"""A real headless Chromium, driven over its own protocol: found on the machine, or fetched from Debian once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from blurfleet.cache import cache_dir
from blurfleet.deadline import came_true

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, where Chromium has no sandbox
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # offline, but for the gateway
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",
    "--force-color-profile=srgb",
    "--window-size=1280,1000",
    "--remote-debugging-port=0",
)
DEADLINE_S = 60.0


def chromium() -> tuple[str, dict[str, str]]:
    """Return the browser's program and what its environment needs; fetches it where it is missing."""
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found, {}
    unpacked = cache_dir() / "chromium"
    program = unpacked / "usr/lib/chromium/chromium"
    if not program.exists():
        _fetch(unpacked)
    libraries = ":".join(str(path) for path in sorted((unpacked / "usr/lib").glob("*-linux-gnu")))
    return str(program), {"LD_LIBRARY_PATH": libraries}


def _fetch(folder: Path) -> None:
    """Unpack Debian's chromium and whatever of its libraries this machine lacks; needs no root."""
    plan = subprocess.run(
        ["apt-get", "--simulate", "--no-install-recommends", "install", "chromium"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    packages = re.findall(r"^Inst (\S+)", plan, re.MULTILINE)
    downloads = folder.with_suffix(".debs")
    downloads.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "--quiet", "download", *packages], cwd=downloads, check=True, timeout=600)
    partial = folder.with_suffix(".partial")
    for package in sorted(downloads.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(partial)], check=True)
    partial.rename(folder)
    shutil.rmtree(downloads)


class Tab:
    """One page of the browser. Every message of the browser's is kept in `events`."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Network", "Runtime", "Log", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of one command."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=DEADLINE_S))
            if message.get("id") == self._last:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def js(self, expression: str) -> Any:
        """Return the value of an expression, awaited."""
        said = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, expression: str, seconds: float = DEADLINE_S) -> None:
        assert came_true(lambda: bool(self.js(expression)), seconds), f"{expression}: {self.text('body')}"

    def text(self, selector: str) -> str:
        return str(self.js(f"document.querySelector({selector!r}).innerText"))

    def choose_file(self, path: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def drop_file(self, path: Path) -> None:
        place = self.js("(({x, y, width, height}) => [x + width / 2, y + height / 2])(drop.getBoundingClientRect())")
        data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=place[0], y=place[1], data=data)

    def press(self, key: str, times: int = 1) -> None:
        codes = {"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40, "ArrowRight": 39, "End": 35}
        named = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": codes[key]}
        said = {"Enter": "\r", " ": " "}.get(key)
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **named, **({"text": said} if said else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def tab_to(self, element: str) -> None:
        """Press Tab until the element with that id has the focus."""
        for _ in range(30):
            if self.js("document.activeElement.id") == element:
                return
            self.press("Tab")
        raise AssertionError(f"{element} cannot be reached with Tab")

    def pixels(self, image: str) -> dict[str, Any]:
        """Return width, height and the RGBA values of a shown picture."""
        found: dict[str, Any] = self.js(
            f"""(async () => {{
              const image = document.getElementById({image!r}); await image.decode();
              const {{ naturalWidth: width, naturalHeight: height }} = image;
              const canvas = Object.assign(document.createElement('canvas'), {{ width, height }});
              const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);
              return {{ width, height, data: Array.from(context.getImageData(0, 0, width, height).data) }};
            }})()"""
        )
        return found

    def answered(self, path: str) -> list[dict[str, Any]]:
        """Return the responses to requests of a path, as the browser got them."""
        self.js("1")
        got = [event["params"]["response"] for event in self.events if event["method"] == "Network.responseReceived"]
        return [response for response in got if httpx.URL(response["url"]).path == path]

    def requested(self) -> list[str]:
        """Return every address the page asked for, WebSockets included."""
        self.js("1")
        asked = [
            event["params"]["request"]["url"] if "request" in event["params"] else event["params"]["url"]
            for event in self.events
            if event["method"] in ("Network.requestWillBeSent", "Network.webSocketCreated")
        ]
        return [url for url in asked if not url.startswith("blob:")]

    def complaints(self) -> list[str]:
        """Return what the browser's console holds against the page."""
        self.js("1")
        found = [
            event["params"] for event in self.events if event["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
        ]
        return [json.dumps(one) for one in found]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address at which a running Chromium takes commands."""
    program, needs = chromium()
    profile = tmp_path_factory.mktemp("chromium")
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env={**os.environ, **needs},
    )  # fmt: skip
    said = profile / "DevToolsActivePort"
    try:
        assert came_true(lambda: said.exists() and "\n" in said.read_text(), DEADLINE_S), "Chromium did not start"
        yield f"http://127.0.0.1:{said.read_text().splitlines()[0]}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


@pytest.fixture
def tab(browser: str) -> Iterator[Tab]:
    """A fresh page."""
    with httpx.Client(base_url=browser, trust_env=False, timeout=DEADLINE_S) as http:
        made = http.put("/json/new?about:blank").json()
        with connect(made["webSocketDebuggerUrl"], proxy=None, max_size=None, compression=None) as socket:
            yield Tab(socket)
        http.get(f"/json/close/{made['id']}")


@pytest.fixture
def opened(tab: Tab, client: httpx.Client) -> Callable[[], Tab]:
    """Open the gateway's page and wait until it knows its node."""

    def at_gateway() -> Tab:
        tab.open(f"{client.base_url}/")
        tab.until("node.innerText.startsWith('Ready')")
        return tab

    return at_gateway
