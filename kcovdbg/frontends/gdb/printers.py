# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pretty printers for KCOV's structures, for the symbol files of kernels only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import gdb.printing

import gdb
from kcovdbg.abi import mode as modes
from kcovdbg.abi.handle import decode_handle
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import TargetError

_COLLECTION: Final = "kcov"
_SYMBOL: Final = "kcov_fops"


def _field_names(value: gdb.Value) -> list[str]:
    return [field.name for field in value.type.strip_typedefs().fields() if field.name]


def _mode_text(word: int) -> str:
    """Return the name of a mode word, an object's or a task's with its flags."""
    try:
        enumeration = gdb.lookup_type("enum kcov_mode")
        known: Mapping[str, int] = {str(field.name): int(field.enumval) for field in enumeration.fields()}
    except gdb.error:
        known = {}
    name = modes.mode_name(word & ~modes.IN_CTXSW, known)
    return f"{name} | IN_CTXSW" if word & modes.IN_CTXSW else name


def _number(value: gdb.Value) -> int:
    """Return the number in a refcount_t, an atomic_t or a plain integer."""
    while value.type.strip_typedefs().code == gdb.TYPE_CODE_STRUCT:
        value = value[value.type.strip_typedefs().fields()[0]]
    return int(value)


class KcovPrinter:
    """``struct kcov``."""

    def __init__(self, value: gdb.Value) -> None:
        self._value = value

    def to_string(self) -> str:
        """Return a summary."""
        names = _field_names(self._value)
        parts = []
        if "mode" in names:
            parts.append(_mode_text(int(self._value["mode"])))
        if "size" in names:
            parts.append(f"{int(self._value['size'])} words")
        if "remote" in names and int(self._value["remote"]):
            parts.append("remote")
        return f"kcov: {', '.join(parts)}"

    def children(self) -> Iterator[tuple[str, object]]:
        """Yield the members, with the reference count as a number and the mode by name."""
        for name in _field_names(self._value):
            if name in ("refcount", "rc"):
                yield name, _number(self._value[name])
            elif name == "mode":
                yield name, _mode_text(int(self._value[name]))
            elif name == "lock":
                # Long with debugging options; print /r shows it.
                continue
            else:
                yield name, self._value[name]


class RemotePrinter:
    """``struct kcov_remote``."""

    def __init__(self, value: gdb.Value) -> None:
        self._value = value

    def to_string(self) -> str:
        """Return the handle and its object."""
        return f"{decode_handle(int(self._value['handle']))} -> {self._value['kcov'].format_string(symbols=False)}"

    def children(self) -> Iterator[tuple[str, object]]:
        """Yield the members."""
        for name in _field_names(self._value):
            yield name, decode_handle(int(self._value[name])).__str__() if name == "handle" else self._value[name]


class TaskPrinter:
    """The KCOV members of ``struct task_struct`` alone; disabled until the user enables it."""

    def __init__(self, value: gdb.Value) -> None:
        self._value = value

    def to_string(self) -> str:
        """Return the thread id and name."""
        return f"task {int(self._value['pid'])} {self._value['comm'].format_string()}"

    def children(self) -> Iterator[tuple[str, object]]:
        """Yield the members of KCOV."""
        for name in _field_names(self._value):
            if name.startswith("kcov"):
                text = name in ("kcov_mode", "kcov_saved_mode")
                yield name, _mode_text(int(self._value[name])) if text else self._value[name]


def _make_collection() -> gdb.printing.RegexpCollectionPrettyPrinter:
    collection = gdb.printing.RegexpCollectionPrettyPrinter(_COLLECTION)
    collection.add_printer("kcov", "^kcov$", KcovPrinter)
    collection.add_printer("kcov_remote", "^kcov_remote$", RemotePrinter)
    collection.add_printer("task_struct", "^task_struct$", TaskPrinter)
    for printer in collection.subprinters or ():
        # Printing a task shows all of it by default.
        printer.enabled = printer.name != "task_struct"
    return collection


def _register(objfile: gdb.Objfile) -> None:
    if objfile.filename is None or any(getattr(known, "name", None) == _COLLECTION for known in objfile.pretty_printers):
        return
    try:
        with ElfFile(Path(objfile.filename)) as image:
            is_kernel = image.symbols.find(_SYMBOL) is not None
    except TargetError:
        return
    if is_kernel:
        # The file with the debug info is an object file of its own where the two are apart.
        gdb.printing.register_pretty_printer(objfile.owner or objfile, _make_collection(), replace=True)


def define_printers() -> None:
    """Register the printers for loaded kernels and those loaded later."""
    for objfile in gdb.objfiles():
        _register(objfile)
    gdb.events.new_objfile.connect(lambda event: _register(event.new_objfile))
