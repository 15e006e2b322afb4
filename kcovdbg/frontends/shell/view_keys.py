# SPDX-License-Identifier: LGPL-2.1-or-later
"""The keys of a view, as data: bindings, footer and help are made from this one table."""

from __future__ import annotations

from typing import Final, NamedTuple


class Key(NamedTuple):
    """Keys that do one thing."""

    keys: tuple[str, ...]
    """As prompt_toolkit names them."""
    label: str
    """As a reader names them."""
    action: str
    help: str
    footer: str = ""
    """What the footer says; empty: not there."""


KEYS: Final = (
    Key(("down", "j", "enter"), "j ↓", "down", "one record down"),
    Key(("up", "k"), "k ↑", "up", "one record up"),
    Key(("pagedown", "c-f", " "), "PgDn C-f Space", "page-down", "one screen down"),
    Key(("pageup", "c-b"), "PgUp C-b", "page-up", "one screen up"),
    Key(("c-d",), "C-d", "half-down", "half a screen down"),
    Key(("c-u",), "C-u", "half-up", "half a screen up"),
    Key(("home", "g"), "g Home", "first", "the first record"),
    Key(("end", "G"), "G End", "last", "the last record"),
    Key((":",), ":", "go-to", "go to a record by its index, or to 50%"),
    Key(("]", "tab"), "] Tab", "next-difference", "the next difference", "diff"),
    Key(("[", "s-tab"), "[ S-Tab", "previous-difference", "the previous difference"),
    Key(("/",), "/", "search", "search functions, files and addresses for a regular expression", "search"),
    Key(("n",), "n", "search-next", "the next match", "next"),
    Key(("N",), "N", "search-previous", "the previous match"),
    Key(("&",), "&", "filter", "show only what matches a regular expression; an empty one shows all", "filter"),
    Key(("f",), "f", "fold", "fold what is alike: equal records of two traces, runs of one function of one", "fold"),
    Key(("s",), "s", "source", "show the source of the current record", "source"),
    Key(("d",), "d", "detail", "show all frames and operands of the current record", "frames"),
    Key(("y",), "y", "copy", "copy the current record to the terminal's clipboard"),
    Key(("m",), "m", "mouse", "leave the mouse to the terminal, or take it back"),
    Key(("c-l",), "C-l", "redraw", "draw the screen anew"),
    Key(("?", "f1"), "? F1", "help", "this help", "help"),
    Key(("q", "escape", "c-c", "c-q"), "q Esc", "leave", "leave", "leave"),
)


def footer() -> str:
    """Return the line below the view."""
    return "  ".join(f"{key.label.split()[0]} {key.footer}" for key in KEYS if key.footer)


def help_lines() -> list[tuple[str, str]]:
    """Return the keys' names and what they do."""
    return [(key.label, key.help) for key in KEYS]
