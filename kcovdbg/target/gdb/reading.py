# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the target's memory through GDB, and never the vmlinux file, which GDB answers from where it has nothing better."""

from __future__ import annotations

import re
from pathlib import Path

import gdb
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.image import ElfFile
from kcovdbg.target.relocation import Read


def make_reader(core: ElfFile | None) -> Read:
    """Return a function that reads the target's memory, and never the vmlinux file.

    :param core: the core that GDB reads; without one the connection answers for all memory.
    """

    def read(address: int, size: int) -> bytes:
        if core is not None and not core.holds(address, size):
            # GDB would answer from the vmlinux file here, or with zeros from a .bss.
            raise ReadError(f"the core doesn't hold {size} bytes at {address:#x}", address)
        try:
            return bytes(gdb.selected_inferior().read_memory(address, size))
        except gdb.MemoryError as error:
            raise ReadError(f"can't read {size} bytes at {address:#x}", address) from error
        except gdb.error as error:
            raise TargetError(" ".join(str(error).split())) from error
        except OverflowError:
            raise ReadError(f"{address:#x} is no address", address) from None

    return read


def open_core() -> ElfFile:
    """Return the core that GDB reads."""
    inferior = gdb.selected_inferior()
    # Since GDB 18 Python may ask; before, GDB's own description has the name.
    corefile = getattr(inferior, "corefile", None)
    filename = getattr(corefile, "filename", None)
    if filename is None:
        text = gdb.execute("info files", to_string=True)
        match = re.search(r"^Local core dump file:\s+[`'](.*)', file type ", text, re.MULTILINE)
        # In another language than English the line that ends so is the core's when it isn't the program's.
        names = [match[1]] if match is not None else re.findall(r"^\s+[`'«\"](.*?)['»\"],[^\n]*\belf\d\d-", text, re.MULTILINE)
        cores = [path for path in names if _is_core(Path(path))]
        if not cores:
            raise TargetError("the core's file can't be found", hint="open it again: core-file PATH")
        filename = cores[0]
    return ElfFile(Path(filename))


def _is_core(path: Path) -> bool:
    try:
        return ElfFile(path).is_core
    except TargetError:
        return False
