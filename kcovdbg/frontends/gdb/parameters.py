# SPDX-License-Identifier: LGPL-2.1-or-later
"""``set kcov …`` and ``show kcov …``."""

from __future__ import annotations

from typing import Any, Final

import gdb
from kcovdbg.render.theme import Color
from kcovdbg.render.writer import Format

_NAMES: Final = ("color", "debug", "format", "kaslr-offset")


class _Prefix(gdb.Command):
    """Parameters of kcov-show."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__(name, gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 - GDB's signature
        """Show all parameters, or list those that can be set, as GDB does for its own; before GDB 17 a prefix does nothing."""
        if argument:
            raise gdb.GdbError(f'Undefined {self._name} command: "{argument}".  Try "help {self._name}".')
        if self._name.startswith("set"):
            gdb.execute(f"help {self._name}")
            return
        for name in _NAMES:
            gdb.write(f"{name}:  ")
            gdb.execute(f"{self._name} {name}")


class _Choice(gdb.Parameter):
    def __init__(self, name: str, what: str, choices: list[str], doc: str) -> None:
        self.set_doc = f"Set {what}."
        self.show_doc = f"Show {what}."
        self.__doc__ = doc
        self._what = what
        super().__init__(f"kcov {name}", gdb.COMMAND_DATA, gdb.PARAM_ENUM, choices)
        self.value = choices[0]

    def get_set_string(self) -> str:
        return ""

    def get_show_string(self, svalue: str) -> str:
        return f"{self._what[0].upper()}{self._what[1:]} is {svalue}."


class _Offset(gdb.Parameter):
    """auto: determined each time. A number: the offset as for `symbol-file -o`."""

    set_doc = "Set the KASLR offset of the kernel image."
    show_doc = "Show the KASLR offset of the kernel image."

    def __init__(self) -> None:
        self._kept = "auto"
        super().__init__("kcov kaslr-offset", gdb.COMMAND_DATA, gdb.PARAM_STRING_NOESCAPE)
        self.value = "auto"

    def get_set_string(self) -> str:
        word = str(self.value or "auto").strip()
        try:
            parse_offset(word)
        except ValueError:
            self.value = self._kept
            raise gdb.GdbError(f"'{word}' is not an offset; use auto, or a number such as 0x1a000000") from None
        self._kept = self.value = word
        return ""

    def get_show_string(self, svalue: str) -> str:
        return f"The KASLR offset of the kernel image is {svalue}."


class _Debug(gdb.Parameter):
    """Internal errors show where they come from."""

    set_doc = "Set whether kcov-show shows where errors come from."
    show_doc = "Show whether kcov-show shows where errors come from."

    def __init__(self) -> None:
        super().__init__("kcov debug", gdb.COMMAND_MAINTENANCE, gdb.PARAM_BOOLEAN)
        self.value = False

    def get_set_string(self) -> str:
        return ""

    def get_show_string(self, svalue: str) -> str:
        return f"Showing where errors of kcov-show come from is {svalue}."


def parse_offset(word: str) -> int | None:
    """Return the offset in a word, None for auto.

    :raises ValueError: when it is neither auto nor a number.
    """
    return None if word == "auto" else int(word, 0)


def define_parameters() -> None:
    """Define the parameters in GDB."""
    _Prefix("set kcov")
    _Prefix("show kcov")
    _Offset()
    _Choice(
        "color",
        "when kcov-show uses color",
        [color.value for color in Color],
        "auto: on a terminal, while `style enabled` is on.",
    )
    _Choice(
        "format",
        "what kcov-show writes when neither --json nor --csv is given",
        [choice.value for choice in Format],
        "text is for people, json and csv for programs.",
    )
    _Debug()


def _value(name: str) -> Any:
    return gdb.parameter(f"kcov {name}")


def kaslr_offset() -> int | None:
    """Return the KASLR offset that the user set, None for auto."""
    return parse_offset(str(_value("kaslr-offset") or "auto"))


def color() -> Color:
    """Return when the user wants color."""
    return Color(_value("color"))


def output_format() -> Format:
    """Return the default format of answers."""
    return Format(_value("format"))


def is_debugging() -> bool:
    """Return whether errors show where they come from."""
    return bool(_value("debug"))
