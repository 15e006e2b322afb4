# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables in INI files: each section is an object of a dataclass."""

from __future__ import annotations

import configparser
import shlex
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Read = TypeVar("Read")


def read_table(kind: Callable[..., Read], path: Path) -> dict[str, Read]:
    """Return the objects by name.

    `like` names a section whose settings are taken over; a section ".NAME" is no object.
    """
    parser = configparser.ConfigParser(
        delimiters="=", interpolation=configparser.ExtendedInterpolation()
    )
    parser.read_string(path.read_text())
    types = typing.get_type_hints(kind)

    def settings(section: str) -> dict[str, str]:
        own = dict(parser[section])
        return settings(own.pop("like")) | own if "like" in own else own

    return {
        section: kind(
            name=section,
            **{key: _convert(types[key], text) for key, text in settings(section).items()},
        )
        for section in parser.sections()
        if not section.startswith(".")
    }


def _convert(kind: Any, text: str) -> Any:
    if kind is bool:
        return text == "yes"
    if kind is int:
        return int(text, 0)
    # A value may go on on the next line.
    text = text.replace("\n", " ")
    if kind is str:
        return text
    words = shlex.split(text)
    if typing.get_origin(kind) is tuple:
        return tuple(words)
    _, of_values = typing.get_args(kind)
    return {
        key: _convert(of_values, value) for key, value in (word.split("=", 1) for word in words)
    }
