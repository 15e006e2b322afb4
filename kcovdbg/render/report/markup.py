# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text in HTML, and data in a script element: what comes from a kernel's memory stays text."""

from __future__ import annotations

import html
import json
from typing import Final

from kcovdbg.render.escape import escape, escape_surrogates

# Within a script element only the end tag, a comment's begin and its kin mean anything: none has a "<" left.
_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def text(value: object) -> str:
    """Return text for between tags and within quoted attributes: escaped as for a terminal, then for HTML."""
    return html.escape(escape(str(value)), quote=True)


def source_text(value: str) -> str:
    """Return a line of source, whose tabs were expanded before."""
    return html.escape(escape(value), quote=False)


def json_text(value: object) -> str:
    """Return JSON for within a script element."""
    encoded = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    for character, replacement in _IN_SCRIPT.items():
        encoded = encoded.replace(character, replacement)
    return escape_surrogates(encoded)
