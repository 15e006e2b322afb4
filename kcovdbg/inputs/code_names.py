# SPDX-License-Identifier: LGPL-2.1-or-later
"""Checks that a kernel has the functions and source files that the user named."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from typing import Final

from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.errors import KcovdbgError, suggest
from kcovdbg.inputs.task_names import is_address
from kcovdbg.records.located_records import matches_path
from kcovdbg.records.pc_locations import LocationCache, OtherCode, is_pattern
from kcovdbg.symbols.location_table import LocationTable

_MODULE_HINT: Final = "one of a module is known by its debug info: -s MODULE.ko"


def _knows_function(table: LocationTable, other: OtherCode | None, name: str) -> bool:
    """Return whether a kernel may have a function or symbol with a name or pattern."""
    if is_pattern(name):
        # The functions of modules cannot be listed.
        return True
    if table.find_frames("frame_function", {demangle(name)}) or table.functions_named(name):
        return True
    if other is None:
        return False
    return other.has_function(name) or other.find_code(name) is not None


def unknown_function(
    tables: Sequence[LocationTable], name: str, noun: str = "function"
) -> KcovdbgError:
    """Return the error for a function that a kernel lacks."""
    known = {known for table in tables for known in table.function_names()}
    source_name = strip_clone_suffix(name)
    hint = suggest(name, sorted(known))
    if source_name in known:
        hint = f"did you mean {source_name}?"
    elif is_address(name):
        hint = "sym shows what an address is"
    return KcovdbgError(f"no {noun} '{name}' in this kernel", hint=hint or _MODULE_HINT)


def _knows_file(table: LocationTable, other: OtherCode | None, name: str) -> bool:
    if any(matches_path(name, file) for file in (*table.files(), *table.units())):
        return True
    return other is not None and other.has_file(name)


def unknown_file(files: Iterable[str], name: str, *, lacks_modules: bool = False) -> KcovdbgError:
    """Return the error for a source file or directory of which a kernel has no code.

    :param files: the source files of its code.
    :param lacks_modules: whether the code of some loaded module is unknown.
    """
    if lacks_modules:
        return KcovdbgError(
            f"neither the kernel image nor a module whose file is at hand has code of a file or "
            f"directory '{name}'",
            hint=_MODULE_HINT,
        )
    base_names = sorted({posixpath.basename(file) for file in files})
    hint = (
        suggest(posixpath.basename(name), base_names)
        or "paths are relative to the build root, as in fs/open.c or fs"
    )
    return KcovdbgError(f"this kernel has no code of a file or directory '{name}'", hint=hint)


def check_code(
    names: Sequence[LocationCache], wanted: Iterable[str], *, are_files: bool = False
) -> None:
    """Make sure that each wanted function, or file, directory or pattern, is in one of some
    kernels.

    :param names: the kernels' names of PCs.
    :raises KcovdbgError: when one is in none of them.
    """
    knows = _knows_file if are_files else _knows_function
    for name in wanted:
        tables = []
        is_known = False
        for kernel_names in names:
            table = kernel_names.table
            if table is None:
                # The inlined functions are unknown.
                return
            tables.append(table)
            is_known = is_known or knows(table, kernel_names.other, name)
        if not is_known:
            if are_files:
                raise unknown_file((file for table in tables for file in table.files()), name)
            raise unknown_function(tables, name)
