# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel among GDB's symbol files.

GDB's symbols are left as their user has them: addresses come from the vmlinux file's own table. Types are looked up by GDB's
Python functions, which read one compilation unit where expressions read hundreds.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Final

import gdb
from kcovdbg.errors import MissingTypeError, TargetError
from kcovdbg.target import Member
from kcovdbg.target.gdb.types import resolve_member
from kcovdbg.target.image import ElfFile

# Statics of kernel/kcov.c, in every version. The unit that defines them defines most of what is read, task_struct included:
# looked at first, it spares others.
_ANCHORS: Final = ("kcov_fops", "kcov_ioctl")
_NO_KERNEL: Final = "load the kernel's vmlinux with debug info: symbol-file VMLINUX"


class GdbKernel:
    """The kernel among GDB's symbol files: its vmlinux, read as a file, and its types, cached.

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
        """What GDB's own symbols are shifted by, because their user loaded them so."""
        for name in _ANCHORS:
            symbol = self.image.symbol(name)
            known = self.objfile.lookup_static_symbol(name) if symbol is not None else None
            if symbol is None or known is None or not known.is_valid():
                continue
            try:
                address = known.value().address
            except gdb.error:
                continue
            if address is not None:
                return int(address) - symbol.address
        return 0

    def find_type(self, name: str) -> gdb.Type:
        """Return a type by its name.

        :raises MissingTypeError: when the debug info has no such type.
        """
        if name not in self._types:
            # The anchor's unit is read now, if it wasn't.
            _ = self.relocation
            try:
                self._types[name] = gdb.lookup_type(name).strip_typedefs()
            except gdb.error:
                self._types[name] = None
        found = self._types[name]
        if found is None:
            raise MissingTypeError(f"the debug info has no {name}")
        return found

    def find_member(self, type_name: str, path: str) -> Member:
        """Find a member as :meth:`kcovdbg.target.Target.member` says.

        :raises MissingTypeError: when the type or the member doesn't exist.
        """
        key = (type_name, path)
        if key not in self._members:
            self._members[key] = resolve_member(self.find_type(type_name), path, big_endian=self.image.big_endian)
        found = self._members[key]
        if found is None:
            raise MissingTypeError(f"{type_name} has no member {path}")
        return found


# The kernels looked at so far, by file; dropped when GDB drops the symbol file or the file changes.
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
        except TargetError:
            # Of the system's own making, such as a vdso.
            continue
        if image.symbol("init_task") is not None:
            kernel = GdbKernel(objfile, image)
            _kernels[objfile.filename] = kernel
            return kernel
        if not image.has_symbols:
            stripped = image.path
    if stripped is not None:
        raise TargetError(f"{stripped} has no symbol table", hint=_NO_KERNEL)
    raise TargetError("no kernel is loaded", hint=_NO_KERNEL)


def _is_unchanged(image: ElfFile) -> bool:
    try:
        status = image.path.stat()
    except OSError:
        return False
    return bool(image.stamp == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))
