# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keys of a view, for bindings, footer and help."""

from __future__ import annotations

from typing import Final, NamedTuple


class ViewKey(NamedTuple):
    """The keys of one action."""

    keys: tuple[str, ...]
    """As prompt_toolkit names them."""
    label: str
    """The keys' names in help."""
    action: str
    help: str
    footer: str = ""
    """The action in the footer; empty where it is not shown."""


KEYS: Final = (
    ViewKey(("down", "j", "enter"), "j ↓", "down", "one record down"),
    ViewKey(("up", "k"), "k ↑", "up", "one record up"),
    ViewKey(("pagedown", "c-f", " "), "PgDn C-f Space", "page-down", "one screen down"),
    ViewKey(("pageup", "c-b"), "PgUp C-b", "page-up", "one screen up"),
    ViewKey(("c-d",), "C-d", "half-down", "half a screen down"),
    ViewKey(("c-u",), "C-u", "half-up", "half a screen up"),
    ViewKey(("home", "g"), "g Home", "first", "the first record"),
    ViewKey(("end", "G"), "G End", "last", "the last record"),
    ViewKey((":",), ":", "go-to", "go to a record by its index, or to 50%"),
    ViewKey(("]", "tab"), "] Tab", "next-difference", "the next difference", "diff"),
    ViewKey(("[", "s-tab"), "[ S-Tab", "previous-difference", "the previous difference"),
    ViewKey(("/",), "/", "search", "search functions, files and addresses for a regular expression", "search"),
    ViewKey(("n",), "n", "search-next", "the next match", "next"),
    ViewKey(("N",), "N", "search-previous", "the previous match"),
    ViewKey(("&",), "&", "filter", "show only matches of a regular expression; an empty one shows all", "filter"),
    ViewKey(("f",), "f", "fold", "fold equal records of two traces, or runs of one function", "fold"),
    ViewKey(("s",), "s", "source", "show the source of the current record", "source"),
    ViewKey(("d",), "d", "detail", "show all frames and operands of the current record", "frames"),
    ViewKey(("i",), "i", "notes", "show all notes"),
    ViewKey(("y",), "y", "copy", "copy the current record to the terminal's clipboard"),
    ViewKey(("m",), "m", "mouse", "switch between mouse use here and in the terminal"),
    ViewKey(("c-l",), "C-l", "redraw", "redraw the screen"),
    ViewKey(("?", "f1"), "? F1", "help", "show this help", "help"),
    ViewKey(("q", "escape", "c-c", "c-q"), "q Esc", "leave", "leave", "leave"),
)


def footer() -> str:
    """Return the footer of the view."""
    return "  ".join(f"{key.label.split()[0]} {key.footer}" for key in KEYS if key.footer)


def help_lines() -> list[tuple[str, str]]:
    """Return the names and actions of the keys."""
    return [(key.label, key.help) for key in KEYS]
