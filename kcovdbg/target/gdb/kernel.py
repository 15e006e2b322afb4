# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel among GDB's symbol files.

Addresses come from the symbol table of the vmlinux file, as GDB's symbols may have been relocated by their user. Types are
looked up by GDB's Python functions, which read one compilation unit; expressions read hundreds.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import gdb
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import MissingTypeError, TargetError
from kcovdbg.target.gdb.types import resolve_member
from kcovdbg.target.protocol import Member

if TYPE_CHECKING:
    from collections.abc import Iterator

# Static symbols of kernel/kcov.c, in every version. Its compilation unit has most of the types that are read, task_struct
# included.
_ANCHORS: Final = ("kcov_fops", "kcov_ioctl")
_NO_KERNEL: Final = "load the vmlinux of the kernel, with debug info: symbol-file VMLINUX"


class GdbKernel:
    """The kernel among GDB's symbol files: its vmlinux file, and its types, cached.

    :param objfile: the symbol file.
    :param image: the same file, with a symbol table.
    """

    def __init__(self, objfile: gdb.Objfile, image: ElfFile) -> None:
        self.objfile = objfile
        self.image = image
        self._types: dict[str, gdb.Type | None] = {}
        self._members: dict[tuple[str, str], Member | None] = {}

    @cached_property
    def relocation(self) -> int:
        """What GDB's symbols are shifted by: their user may have loaded them at an offset."""
        for address, known in self._find_anchors():
            try:
                value = known.value().address
            except gdb.error:
                continue
            if value is not None:
                return int(value) - address
        return 0

    @cached_property
    def _unit(self) -> tuple[gdb.Block, ...]:
        """The compilation unit of kernel/kcov.c, nothing when GDB does not find it."""
        return tuple(known.symtab.static_block() for _, known in self._find_anchors())[:1]

    def _find_anchors(self) -> Iterator[tuple[int, gdb.Symbol]]:
        """Yield symbols of kernel/kcov.c with their addresses in the vmlinux file; GDB reads the unit to find one."""
        for name in _ANCHORS:
            symbol = self.image.symbols.find(name)
            known = self.objfile.lookup_static_symbol(name) if symbol is not None else None
            if symbol is not None and known is not None and known.is_valid():
                yield symbol.address, known

    def find_type(self, name: str) -> gdb.Type:
        """Return a type by its name.

        :raises MissingTypeError: when the debug info has no such type.
        """
        if name not in self._types:
            try:
                # Without a unit to begin with, GDB 18 reads another one for each type.
                self._types[name] = gdb.lookup_type(name, *self._unit).strip_typedefs()
            except gdb.error:
                self._types[name] = None
        found = self._types[name]
        if found is None:
            raise MissingTypeError(f"the debug info has no {name}")
        return found

    def find_member(self, type_name: str, path: str) -> Member:
        """Find a member, as :meth:`kcovdbg.target.protocol.Target.member` does.

        :raises MissingTypeError: when there is no such type or member.
        """
        key = (type_name, path)
        if key not in self._members:
            self._members[key] = resolve_member(self.find_type(type_name), path, big_endian=self.image.header.big_endian)
        found = self._members[key]
        if found is None:
            raise MissingTypeError(f"{type_name} has no member {path}")
        return found


# By file; replaced when GDB drops the symbol file or the file changes.
_kernels: dict[str, GdbKernel] = {}


def find_kernel() -> GdbKernel:
    """Return the kernel among GDB's symbol files.

    :raises TargetError: when there is none.
    """
    stripped: Path | None = None
    for objfile in gdb.objfiles():
        if not objfile.is_valid() or objfile.filename is None:
            continue
        known = _kernels.get(objfile.filename)
        if known is not None and known.objfile.is_valid() and known.objfile == objfile and _is_unchanged(known.image):
            return known
        try:
            image = ElfFile(Path(objfile.filename))
            if image.symbols.find("init_task") is not None:
                kernel = GdbKernel(objfile, image)
                _kernels[objfile.filename] = kernel
                return kernel
            if not image.symbols:
                stripped = image.path
        except TargetError:
            # Not a file of its own, such as a vdso.
            continue
    if stripped is not None:
        raise TargetError(f"{stripped} has no symbol table", hint=_NO_KERNEL)
    raise TargetError("no kernel is loaded", hint=_NO_KERNEL)


def _is_unchanged(image: ElfFile) -> bool:
    try:
        status = image.path.stat()
    except OSError:
        return False
    return bool(image.stamp == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
