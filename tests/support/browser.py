"""Browser: a real Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
START_SECONDS = 20.0
TIMEOUT = 10.0
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # there is none for root, as whom CI runs
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Browser:
    """A context that starts it, and ends it with all of its processes."""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        profile = f"--user-data-dir={self._folder.name}"
        self._process = subprocess.Popen(
            [CHROMIUM, *_OPTIONS, profile, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        told = Path(self._folder.name, "DevToolsActivePort")
        deadline = time.monotonic() + START_SECONDS
        while not (told.exists() and told.read_text().count("\n") >= 1):
            assert time.monotonic() < deadline, f"no browser in {START_SECONDS} s"
            assert self._process.poll() is None, "the browser has ended"
            time.sleep(0.01)
        port, path = told.read_text().splitlines()
        self._link = _Link(f"ws://127.0.0.1:{port}{path}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.close()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def open(
        self,
        url: str,
        width: int = 1280,
        height: int = 800,
        *,
        dark: bool = False,
        contrast: bool = False,
    ) -> BrowserPage:
        """A page in a context of its own: nothing is kept from the one before."""
        context = self._link.call("Target.createBrowserContext")["browserContextId"]
        target = self._link.call(
            "Target.createTarget", url="about:blank", browserContextId=context
        )["targetId"]
        session = self._link.call("Target.attachToTarget", targetId=target, flatten=True)
        wishes = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-contrast": "more" if contrast else "no-preference",
        }
        return BrowserPage(self._link, session["sessionId"], context, url, width, height, wishes)


class BrowserPage:
    """
    Attributes:
        complaints: what its console was told of errors and of violations of its policy.
    """

    def __init__(
        self,
        link: _Link,
        session: str,
        context: str,
        url: str,
        width: int,
        height: int,
        wishes: dict[str, str],
    ) -> None:
        self._link, self._session, self._context = link, session, context
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self._call("Emulation.setEmulatedMedia", features=features)
        self.resize(width, height)
        self._load("Page.navigate", url=url)
        # What was told may be that the blank one has come.
        self.until(
            f"location.href.startsWith({json.dumps(url)}) && document.readyState === 'complete'"
        )

    def reload(self) -> None:
        self._load("Page.reload")

    def resize(self, width: int, height: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of its promise."""
        told = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, (expression, told["exceptionDetails"])
        return told["result"].get("value")

    def until(self, expression: str, timeout: float = TIMEOUT) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + timeout
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"not in {timeout} s: {expression}\n{self.text()}"
            time.sleep(0.01)

    def text(self) -> str:
        """All that can be read on the page."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, text: str) -> None:
        """Put the focus on a field, and type as a keyboard does."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self._call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        codes["Delete"] = 46
        code = codes.get(key) or ord(key.upper())
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        about = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", type="keyDown", **about, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **about)

    @property
    def complaints(self) -> list[str]:
        self.value("0")  # What was told before has come with this.
        found = []
        for event in self._link.events:
            if event.get("sessionId") != self._session:
                continue
            about = event["params"]
            if event["method"] == "Log.entryAdded" and about["entry"]["level"] == "error":
                found.append(about["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(about["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and about["type"] == "error":
                found.append(json.dumps(about["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that it has requested."""
        self.value("0")
        return [
            event["params"]["request"]["url"]
            for event in self._link.events
            if event.get("sessionId") == self._session
            and event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        self._link.call("Target.disposeBrowserContext", browserContextId=self._context)

    def _load(self, method: str, **params: Any) -> None:
        """Have another document come, and wait until it is there: until then, what is asked is
        asked of the one before, or of none."""
        known = len(self._link.events)
        self._call(method, **params)
        self._link.until(self._session, "Page.loadEventFired", known)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._link.call(method, self._session, **params)


class _Link:
    """The connection to the browser.

    Attributes:
        events: all that it told by itself.
    """

    def __init__(self, url: str) -> None:
        self._socket: ClientConnection = connect(url, max_size=None, proxy=None)
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            told: dict[str, Any] = json.loads(self._socket.recv(TIMEOUT))
            if told.get("id") == self._number:
                assert "error" not in told, (method, told["error"])
                result: dict[str, Any] = told["result"]
                return result
            self.events.append(told)

    def until(self, session: str, method: str, known: int) -> None:
        """Wait for an event of a session, from number `known` of all events on."""
        while True:
            for event in self.events[known:]:
                if event["method"] == method and event.get("sessionId") == session:
                    return
            known = len(self.events)
            self.events.append(json.loads(self._socket.recv(TIMEOUT)))

    def close(self) -> None:
        self._socket.close()
