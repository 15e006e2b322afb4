# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words that name code on the command line of ``why``: a function, ``FILE:LINE``, a PC, or
files with ``--all``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from kcovdbg.console.context import Context
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.task_names import is_address
from kcovdbg.model.location import ModuleMap

# A function with an offset, as in call traces.
_PLACE: Final = re.compile(r"[^:]+\+(?:0x[0-9a-f]+|[0-9]+)(?:/0x[0-9a-f]+)?", re.IGNORECASE)
LINE: Final = re.compile(r"(?P<file>.+\.(?:c|h|S|rs)):(?P<line>[0-9]+)")


class CodeName(NamedTuple):
    """The code that a question is about."""

    text: str
    pc: int | None
    """The value of the text, where it is an address."""
    names: Sequence[str]
    """Names of traces, and of tasks, handles and objects whose state may explain why there is no
    coverage.
    """
    is_all: bool = False
    """Whether the question is about all code of files that did not run; the text names them."""

    @property
    def is_function(self) -> bool:
        """Whether the text names a function."""
        return self.pc is None and not self.is_all and not is_line(self.text)


def is_line(text: str) -> bool:
    """Return whether this is written as a source file and a line."""
    return LINE.fullmatch(text) is not None


def find_address(context: Context, function: str) -> int | None:
    """Return the address of a function in the running kernel, None where there is no such
    symbol.
    """
    try:
        return context.target.symbol(function).address
    except KcovdbgError:
        return None


def names_state(text: str) -> bool:
    """Return whether a word has the form of a thread id, a handle or an object's name, or is an
    address.
    """
    return text.isdecimal() or is_address(text) or (":" in text and "::" not in text)


def find_pc(context: Context, text: str) -> int | None:
    """Return a PC as recorded, where a word is one, is the address of code, or is a function with
    an offset; None where it is not.

    :raises KcovdbgError: when the function with an offset is not, or not only, at one address.
    """
    if _PLACE.fullmatch(text):
        return _find_place(context, text)
    image = context.kernel.code.image if is_address(text) else None
    if image is None:
        return None
    value = int(text, 16)
    offset = context.target.kaslr_offset
    with ElfFile(image) as elf:
        texts = elf.text_sections()
    modules = ModuleMap(context.kernel.code.modules or ())
    for pc in (value, value - offset):
        is_in_image = any(0 < pc - text.address <= text.size for text in texts)
        if is_in_image or modules.find(pc) is not None:
            return pc
    return None


def _find_place(context: Context, text: str) -> int | None:
    """Return the address of a function with an offset, minus the KASLR offset; None where the text
    is not one.
    """
    # Questions about state alone load none of this.
    from kcovdbg.inputs.code_names import check_code
    from kcovdbg.records.oops_words import parse_words

    try:
        (word,) = parse_words(text)
    except ValueError:
        return None
    found = list(context.kernel.names.recorded_words.find(word))
    if found[0].is_missing:
        # The error for a function has the names that are similar.
        check_code([context.names], [text.partition("+")[0]])
    elif len(found) == 1 and found[0].pc is not None and not found[0].errors:
        return found[0].pc
    problem = next(chain.from_iterable(row.errors for row in found), "its code is not loaded")
    raise KcovdbgError(f"{text}: {problem}", hint=f"sym {text} shows what this kernel has there")
