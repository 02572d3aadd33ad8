"""Debian's Chromium without a window, steered over its DevTools protocol: what tests of pages share."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 30.0
"""Seconds after which a browser that does not answer is given up."""


class Browser:
    """One tab, and everything that it complained about or asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.number = socket, 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that come meanwhile are kept."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message}"
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def open(self, page: Path, *, width: int = 1000, theme: Literal["light", "dark"] = "light") -> None:
        """Open a page in a window of some width, and wait until it has been loaded."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.named("Page.loadEventFired"):
            self.events.append(json.loads(self.socket.recv(timeout=PATIENCE)))

    def named(self, *names: str) -> list[dict[str, Any]]:
        """Events of these names since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in names]

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """Errors, warnings and everything written to the console."""
        return self.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        return [event["request"]["url"] for event in self.named("Network.requestWillBeSent")]

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def printed(self) -> bytes:
        """The page as PDF, on A4."""
        found = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(found["data"])


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a folder."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program, "Chromium is needed: `make extras` installs it, or apt-get install chromium"
    # Without the sandbox, since tests may run as root; the pages are our own.
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    process = subprocess.Popen([program, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connect(_address(folder), max_size=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE)


def _address(folder: Path) -> str:
    """Where the tab listens; the browser writes its port once it is ready."""
    end = time.monotonic() + PATIENCE
    file = folder / "DevToolsActivePort"
    while not (file.is_file() and file.read_text().count("\n")):
        assert time.monotonic() < end, "the browser did not start"
        time.sleep(0.05)
    port = file.read_text().splitlines()[0]
    with urlopen(f"http://127.0.0.1:{port}/json") as answer:  # our own browser
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
