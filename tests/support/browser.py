# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chromium without a window, driven through the pipe of its remote debugging: no port, no further
package.
"""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATIENCE = 60
_KEYS = {
    "PageDown": 34,
    "PageUp": 33,
    "End": 35,
    "Home": 36,
    "ArrowDown": 40,
    "ArrowUp": 38,
    "Enter": 13,
    "Tab": 9,
}

# Contrast of every text with its background: WCAG 2 wants a ratio of 4.5 for text of this size.
CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const parse = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => color.slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest(".hidden, button:disabled, script, style, noscript")) continue;
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const [one, two] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < 4.5) bad.push([element.className, element.textContent.slice(0, 20), ratio]);
  }
  return bad;
})()
"""


def find_browser():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page. Its errors are kept in ``complaints``, its network requests in ``requests``."""

    def __init__(self, profile):
        self.complaints = []
        self.requests = []
        self._number = 0
        self._buffer = b""
        low_commands, self._write = os.pipe()
        self._read, low_answers = os.pipe()
        # Out of the way of descriptors 3 and 4, which the browser reads commands from and answers
        # on.
        commands, answers = (
            fcntl.fcntl(low, fcntl.F_DUPFD, 64) for low in (low_commands, low_answers)
        )
        options = [
            "--headless",
            # Tests run as root in containers, where the sandbox cannot be set up; the page is
            # kcovdbg's own.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        script = f'exec 3<&{commands} 4>&{answers}; exec "$@"'
        with (profile / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", script, "browser", find_browser(), *options],
                pass_fds=(commands, answers),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for descriptor in (low_commands, low_answers, commands, answers):
            os.close(descriptor)
        target = next(
            info for info in self._ask("Target.getTargets")["targetInfos"] if info["type"] == "page"
        )
        self._session = self._ask(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def _ask(self, method, session=None, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def ask(self, method, **parameters):
        return self._ask(method, self._session, **parameters)

    def _next(self):
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, end - time.monotonic()))
            assert ready, "the browser doesn't answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        self._note(message.get("method"), message.get("params"))
        return message

    def _note(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"])
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(parameters)
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append("a dialog")

    def look(self, width=1300, height=900, *, dark=False, touch=False):
        """Emulate a screen."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page):
        """Go to a file or an address."""
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        end = time.monotonic() + _PATIENCE
        while (
            self.run("document.readyState") != "complete"
            or self.run("location.href") == "about:blank"
        ):
            assert time.monotonic() < end
            time.sleep(0.02)
        self.settle()

    def settle(self):
        """Wait until the page has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression):
        """Evaluate in the page; a promise is waited for."""
        result = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition):
        """Wait until a condition holds in the page."""
        self.run(
            f"new Promise((done) => {{ const look = () => ({condition} ? done() : "
            f"setTimeout(look, 20)); look(); }})"
        )

    def press(self, *keys):
        for key in keys:
            text = {} if len(key) > 1 else {"text": key}
            code = {"windowsVirtualKeyCode": _KEYS[key]} if key in _KEYS else {}
            if key == "Enter":
                text = {"text": "\r"}
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **code, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, **code)
        self.settle()

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self._ask("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
