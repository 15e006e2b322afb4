# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rows of JSON with escaped text: the demo and the lab's guests have tasks with terminal escapes in
their names.
"""

from __future__ import annotations

from typing import Any

from kcovdbg.console.text import escape


def escape_all(value: Any) -> Any:
    """Return a value with all text in it escaped."""
    if isinstance(value, dict):
        return {key: escape_all(item) for key, item in value.items()}
    if isinstance(value, list):
        return list(map(escape_all, value))
    return escape(value) if isinstance(value, str) else value
