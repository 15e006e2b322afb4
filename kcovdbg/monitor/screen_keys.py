# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keys of a monitor, for bindings, footer and help; those that htop has do the same."""

from __future__ import annotations

from typing import Final

from kcovdbg.console.view_keys import ViewKey

_MOVING: Final = "↑ ↓ PgUp PgDn g G"

KEYS: Final = (
    ViewKey(("f1", "?", "h"), "F1 ?", "help", "show this help", "Help"),
    ViewKey(("f4", "/", "\\"), "F4 / \\", "filter", "show only rows with a text; Esc shows all again", "Filter"),
    ViewKey(("f6", ">", "."), "F6 > <", "sort-next", "sort by the next column or the one before, or click", "Sort"),
    ViewKey(("<", ","), "<", "sort-previous", ""),
    ViewKey(("I",), "I", "invert", "invert the order"),
    ViewKey(("P",), "P", "sort-rate", "sort tasks by records a second"),
    ViewKey(("M",), "M", "sort-fill", "sort tasks by how full their buffers are"),
    ViewKey(("N",), "N", "sort-pid", "sort tasks by thread id"),
    ViewKey(("tab",), "Tab S-Tab", "next-tab", "the next list or the one before, or click", "List"),
    ViewKey(("s-tab",), "S-Tab", "previous-tab", ""),
    ViewKey((" ", "z", "Z"), "Space z", "freeze", "freeze the screen, or pause the playback; go on", "Freeze"),
    ViewKey(("enter",), "Enter", "view", "view the buffer of this row; q comes back", "View"),
    ViewKey(("up", "k"), _MOVING, "up", "move, as the wheel and a click do"),
    ViewKey(("down", "j"), _MOVING, "down", ""),
    ViewKey(("pageup", "c-b"), _MOVING, "page-up", ""),
    ViewKey(("pagedown", "c-f"), _MOVING, "page-down", ""),
    ViewKey(("home", "g"), _MOVING, "first", ""),
    ViewKey(("end", "G"), _MOVING, "last", ""),
    ViewKey(("c-l",), "C-l", "redraw", "redraw the screen"),
    ViewKey(("q", "f10", "c-c", "c-q"), "q F10", "leave", "leave", "Quit"),
)
PLAYBACK_KEYS: Final = (
    ViewKey(("left",), "←", "back", "playback: 5 s back", "Back"),
    ViewKey(("right",), "→", "forward", "playback: 5 s on", "On"),
    ViewKey(("[",), "[", "look-back", "playback: one look back"),
    ViewKey(("]",), "]", "look-forward", "playback: one look on"),
    ViewKey(("0",), "0", "start", "playback: the start"),
    ViewKey(("$",), "$", "end", "playback: the end"),
    ViewKey(("+",), "+", "faster", "playback: twice as fast"),
    ViewKey(("-",), "-", "slower", "playback: half as fast"),
)


def footer_parts(*, is_playback: bool) -> list[tuple[str, str, str]]:
    """Return of each key in the footer its label, its word and its action."""
    keys = [*KEYS[:-1], *(PLAYBACK_KEYS if is_playback else ()), KEYS[-1]]
    return [(key.label.split()[0], key.footer, key.action) for key in keys if key.footer]


def help_lines(*, is_playback: bool) -> list[tuple[str, str]]:
    """Return the names and actions of the keys."""
    keys = (*KEYS, *(PLAYBACK_KEYS if is_playback else ()))
    return [(key.label, key.help) for key in keys if key.help]
