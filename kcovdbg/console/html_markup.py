# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text in HTML, and data in a script element; text from the kernel's memory cannot become markup."""

from __future__ import annotations

import html
import json
from typing import Final

from kcovdbg.console.escape import escape, escape_surrogates

# In a script element only end tags and comments are markup, and all of them begin with "<".
_IN_SCRIPT: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def text(value: object) -> str:
    """Return text for elements and quoted attributes: escaped as for a terminal, then for HTML."""
    return html.escape(escape(str(value)), quote=True)


def path_text(value: object) -> str:
    """Return a path that breaks only after slashes."""
    return text(value).replace("/", "/<wbr>")


def source_text(value: str) -> str:
    """Return a line of source with expanded tabs."""
    return html.escape(escape(value), quote=False)


def json_text(value: object) -> str:
    """Return JSON for a script element."""
    encoded = packed_text(value)
    for character, replacement in _IN_SCRIPT.items():
        encoded = encoded.replace(character, replacement)
    return escape_surrogates(encoded)


def packed_text(value: object) -> str:
    """Return JSON for a chunk."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))
