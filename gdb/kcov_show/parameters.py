# SPDX-License-Identifier: LGPL-2.1-or-later
"""``set kcov ...`` and ``show kcov ...``."""

from __future__ import annotations

from typing import List

import gdb

_NAMES = ("color", "debug", "format", "kaslr-offset")


class _Prefix(gdb.Command):
    """Parameters of kcov-show."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__(name, gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Show all parameters, or list those that can be set, as GDB does for its own prefixes.
        Before GDB 17, a prefix that Python defines does nothing by itself.
        """
        if argument:
            raise gdb.GdbError(
                'Undefined %s command: "%s".  Try "help %s".' % (self._name, argument, self._name)
            )
        if self._name.startswith("set"):
            gdb.execute("help " + self._name)
            return
        for name in _NAMES:
            gdb.write(name + ":  ")
            gdb.execute("%s %s" % (self._name, name))


class _Choice(gdb.Parameter):
    def __init__(self, name: str, what: str, choices: List[str], doc: str) -> None:
        self.set_doc = "Set %s." % what
        self.show_doc = "Show %s." % what
        self.__doc__ = doc
        self._what = what
        super().__init__("kcov " + name, gdb.COMMAND_DATA, gdb.PARAM_ENUM, choices)
        self.value = choices[0]

    def get_set_string(self) -> str:
        return ""

    def get_show_string(self, svalue: str) -> str:
        return "%s%s is %s." % (self._what[0].upper(), self._what[1:], svalue)


class _Offset(gdb.Parameter):
    """auto: determined each time.

    A number: the offset as for `symbol-file -o`, if it cannot be determined.
    """

    set_doc = "Set the KASLR offset of the kernel image."
    show_doc = "Show the KASLR offset of the kernel image."

    def __init__(self) -> None:
        self._kept = "auto"
        super().__init__("kcov kaslr-offset", gdb.COMMAND_DATA, gdb.PARAM_STRING_NOESCAPE)
        self.value = "auto"

    def get_set_string(self) -> str:
        word = str(self.value or "auto").strip()
        try:
            if word != "auto":
                int(word, 0)
        except ValueError:
            self.value = self._kept
            raise gdb.GdbError(
                "'%s' is not an offset; use auto, or a number such as 0x1a000000" % word
            ) from None
        self._kept = self.value = word
        return ""

    def get_show_string(self, svalue: str) -> str:
        return "The KASLR offset of the kernel image is %s." % svalue


class _Debug(gdb.Parameter):
    """Errors show where they come from."""

    set_doc = "Set whether kcov-show shows where errors come from."
    show_doc = "Show whether kcov-show shows where errors come from."

    def __init__(self) -> None:
        super().__init__("kcov debug", gdb.COMMAND_MAINTENANCE, gdb.PARAM_BOOLEAN)
        self.value = False

    def get_set_string(self) -> str:
        return ""

    def get_show_string(self, svalue: str) -> str:
        return "Showing where errors of kcov-show come from is %s." % svalue


def define() -> None:
    """Define the parameters in GDB."""
    _Prefix("set kcov")
    _Prefix("show kcov")
    _Offset()
    color = "auto: on a terminal, while `style enabled` is on."
    _Choice("color", "when kcov-show uses color", ["auto", "always", "never"], color)
    text = "text is for people, json, jsonl and csv for programs."
    what = "what kcov-show writes when neither --json nor --csv is given"
    _Choice("format", what, ["text", "json", "jsonl", "csv"], text)
    _Debug()
