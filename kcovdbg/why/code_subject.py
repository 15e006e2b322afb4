# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the code that a question names, in the image and in modules: the functions that have it,
and the lines or addresses in them.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.console.context import Context
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.code_names import check_code, unknown_file
from kcovdbg.inputs.task_names import is_address
from kcovdbg.model.kcov import name_some
from kcovdbg.records.line_states import Quality, TraceRecords
from kcovdbg.records.located_records import ASSEMBLY, is_file_name, matches_path
from kcovdbg.symbols.build_option import BuildOptions
from kcovdbg.why.code_name import LINE
from kcovdbg.why.joined_code import WholeCode

NO_RECORDS: Final = TraceRecords({}, Quality(0), frozenset())
# Limit for functions of a file whose blocks are searched for a line.
_MOST_FUNCTIONS: Final = 512
_NAMED: Final = 3


class CodeSubject(NamedTuple):
    """The code that a question is about."""

    name: str
    """Its name in sentences: ``vfs_read()``, ``fs/open.c:482``."""
    functions: Sequence[int]
    """Numbers of the functions that have it, each once; none where the kernel has no code of a
    line.
    """
    line: tuple[str, int] | None = None
    """File, as in debug info, and line; None for addresses or whole functions."""
    addresses: Sequence[int] = ()
    """Addresses of instructions, as in the image, ascending. The subject is the blocks that have
    one of these; a function without any of these is a subject as a whole.
    """
    lack: str = ""
    """Why the kernel has no code of the line, or what may have some; empty where unknown."""
    function: str | None = None
    """The name of the function; None for lines and addresses."""
    is_assembly: bool = False
    """Whether it is a line of assembly outside of functions, which may have code."""

    def find_addresses(self, start: int, size: int) -> Sequence[int]:
        """Return the addresses in a range."""
        first = bisect_left(self.addresses, start)
        return self.addresses[first : bisect_left(self.addresses, start + size, first)]


class SubjectFinder:
    """Finds code by what users call it.

    :param context: of the command.
    :param code: of the kernel.
    """

    def __init__(self, context: Context, code: WholeCode) -> None:
        self._context = context
        self._code = code

    def find(self, text: str, pc: int | None) -> CodeSubject:
        """Return the code that a text names.

        :param pc: its value where it is an address: as recorded, a return address.
        :raises KcovdbgError: when the kernel does not have it.
        """
        match = LINE.fullmatch(text)
        if match is not None:
            return self._find_line(match["file"], int(match["line"]))
        if pc is not None:
            # A PC is a return address: the byte before is in the block.
            number = self._code.function_at(pc - 1)
            starting = self._code.function_at(pc)
            # A call trace has such a place behind a last call, which did not return.
            if starting not in (None, number) and (number is None or is_address(text)):
                name = self._code.name(starting)
                raise KcovdbgError(
                    f"{text}: start of {name}(), which is not a return address", hint=f"why {name}"
                )
            if number is None:
                raise KcovdbgError(
                    f"{text}: in no function of this kernel's image",
                    hint="sym shows what an address is",
                )
            return CodeSubject(text, (number,), None, (pc - 1,))
        return self._find_function(text)

    def _find_function(self, name: str) -> CodeSubject:
        check_code([self._context.names], [name])
        symbols = self._code.functions_named(name)
        own = self._numbers(symbol.address for symbol in symbols)
        # Inlined where it is called.
        places = [point - 1 for point in self._code.find_points(function=name)]
        inlined = [place for place in places if self._code.function_at(place) not in own]
        numbers = (*own, *self._numbers(iter(inlined)))
        if not numbers:
            raise KcovdbgError(
                f"{name}() has no code of its own in this kernel's image",
                hint="name a line: FILE:LINE",
            )
        return CodeSubject(f"{name}()", numbers, None, sorted(inlined), function=name)

    def _numbers(self, addresses: Iterator[int]) -> tuple[int, ...]:
        found = (self._code.function_at(address) for address in addresses)
        return tuple(dict.fromkeys(number for number in found if number is not None))

    def _find_line(self, pattern: str, line: int) -> CodeSubject:
        pattern = self._name_in_tree(pattern)
        known = self._code.files()
        files = [file for file in known if matches_path(pattern, file)]
        exact = [file for file in files if file.removeprefix("./") == pattern]
        if exact:
            files = exact
        if not files:
            lack = self._explain_not_built(pattern)
            if lack is None:
                lacks_modules = self._context.kernel.points.lacks_modules
                raise unknown_file(known, pattern, lacks_modules=lacks_modules)
            return CodeSubject(f"{pattern}:{line}", (), (pattern, line), lack=lack)
        if len(files) > 1:
            raise KcovdbgError(
                f"'{pattern}' is {len(files)} files", hint=f"one of {name_some(files, _NAMED)}"
            )
        place = (files[0], line)
        name = f"{files[0].removeprefix('./')}:{line}"
        functions = tuple(self._find_functions_with(place))
        if not functions and place[0].endswith(ASSEMBLY):
            return CodeSubject(name, (), place, is_assembly=True)
        lack = "" if functions else self._code.explain_lack(place[0])
        return CodeSubject(name, functions, place, lack=lack)

    def _name_in_tree(self, path: str) -> str:
        """Return the shortest form of a path, relative to the source tree if it leads into it."""
        name = posixpath.normpath(path)
        for folder in self._context.kernel.options.source_folders:
            root = posixpath.abspath(folder)
            if name.startswith(f"{root}/"):
                return posixpath.relpath(name, root)
        return name

    def _explain_not_built(self, file: str) -> str | None:
        """Return why a file is not built, None where the source tree does not have it."""
        kernel = self._context.kernel
        path = kernel.sources.tree.find(file)
        if path is None or not kernel.options.source_folders:
            return None
        options = BuildOptions.around(path, file)
        rule = None if options is None else options.find(file)
        if rule is None or rule.option is None:
            return "its file is not built"
        return f"its file is not built: {rule.option} builds it"

    def _find_functions_with(self, place: tuple[str, int]) -> Iterator[int]:
        """Yield the functions that have code of a line."""
        file, line = place
        near: list[int] = []
        others: list[int] = []
        for point, frames in self._code.find_located_points(file):
            has_line = any(
                frame.line == line and frame.file is not None and is_file_name(frame.file)
                for frame in frames
            )
            addresses = near if has_line else others
            addresses.append(point - 1)
        units = (symbol.address for symbol in self._code.functions() if symbol.unit == file)
        numbers = self._numbers(iter((*near, *units, *others)))
        for number in numbers[:_MOST_FUNCTIONS]:
            found = self._code.find_blocks(NO_RECORDS, number)
            if any(place in block.lines or place in block.calls for block in found.blocks):
                yield number
