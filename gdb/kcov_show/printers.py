# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pretty printers for KCOV's structures."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

import gdb.printing

import gdb

from .lender import Lender

_COLLECTION = "kcov"


class _Printer:
    """Print a structure.

    :param value: the structure.
    """

    needs: Tuple[str, ...] = ()
    """Members that tell the kernel's structure from another program's of the same name."""

    def __init__(self, lender: Lender, value: gdb.Value) -> None:
        self._lender = lender
        self._value = value
        self._names: List[str] = [
            field.name for field in value.type.strip_typedefs().fields() if field.name
        ]

    def _mode(self, name: str) -> str:
        """Return the name of the mode in a member, of an object, or of a task with its flags."""
        known: Dict[str, int] = {}
        with contextlib.suppress(gdb.error):
            for field in gdb.lookup_type("enum kcov_mode").fields():
                known[str(field.name)] = int(field.enumval)
        return self._name("mode", name, known)

    def _name(self, kind: str, name: str, known: Optional[Dict[str, int]] = None) -> str:
        value = int(self._value[name])
        text: str = self._lender.ask("name", kind=kind, value=value, known=known)["name"]
        return text


class KcovPrinter(_Printer):
    """``struct kcov``."""

    needs = ("mode", "area", "size")

    def to_string(self) -> str:
        """Return a summary."""
        parts = [self._mode("mode"), "%d words" % int(self._value["size"])]
        if "remote" in self._names and int(self._value["remote"]):
            parts.append("remote")
        return "kcov: " + ", ".join(parts)

    def children(self) -> Iterator[Tuple[str, object]]:
        """Yield the members, with the reference count as a number and the mode by name."""
        for name in self._names:
            if name in ("refcount", "rc"):
                yield name, _number(self._value[name])
            elif name == "mode":
                yield name, self._mode(name)
            # The lock is long in a kernel with debugging options; print /r shows it.
            elif name != "lock":
                yield name, self._value[name]


class RemotePrinter(_Printer):
    """``struct kcov_remote``."""

    needs = ("handle", "kcov")

    def to_string(self) -> str:
        """Return the handle and its object."""
        kcov = self._value["kcov"].format_string(symbols=False)
        return "%s -> %s" % (self._name("handle", "handle"), kcov)

    def children(self) -> Iterator[Tuple[str, object]]:
        """Yield the members."""
        for name in self._names:
            if name == "handle":
                yield name, self._name("handle", name)
            else:
                yield name, self._value[name]


class TaskPrinter(_Printer):
    """The KCOV members of ``struct task_struct`` alone; disabled until the user enables it."""

    needs = ("pid", "comm", "kcov_mode")

    def to_string(self) -> str:
        """Return the thread id and name."""
        return "task %d %s" % (int(self._value["pid"]), self._value["comm"].format_string())

    def children(self) -> Iterator[Tuple[str, object]]:
        """Yield the members of KCOV."""
        for name in self._names:
            if name in ("kcov_mode", "kcov_saved_mode"):
                yield name, self._mode(name)
            elif name.startswith("kcov"):
                yield name, self._value[name]


def _number(value: gdb.Value) -> int:
    """Return the number in a refcount_t, an atomic_t or a plain integer."""
    while value.type.strip_typedefs().code == gdb.TYPE_CODE_STRUCT:
        value = value[value.type.strip_typedefs().fields()[0]]
    return int(value)


def _make_collection(lender: Lender) -> Any:
    collection = gdb.printing.RegexpCollectionPrettyPrinter(_COLLECTION)

    def add(name: str, kind: Any) -> None:
        def choose(value: gdb.Value) -> Any:
            names = {field.name for field in value.type.strip_typedefs().fields()}
            return kind(lender, value) if names.issuperset(kind.needs) else None

        collection.add_printer(name, "^%s$" % name, choose)

    add("kcov", KcovPrinter)
    add("kcov_remote", RemotePrinter)
    add("task_struct", TaskPrinter)
    for printer in collection.subprinters or ():
        # Printing a task shows all of it by default.
        printer.enabled = printer.name != "task_struct"
    return collection


def define(lender: Lender) -> None:
    """Register the printers, for every symbol file that has these structures."""
    gdb.printing.register_pretty_printer(None, _make_collection(lender), replace=True)
