# SPDX-License-Identifier: LGPL-2.1-or-later
"""Look up written code locations, such as the words of an oops, in a kernel's code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK, address_of, pc_of
from kcovdbg.abi.record import CALL_LENGTHS
from kcovdbg.model.location import Frame, Location
from kcovdbg.records.log_text import LogLine
from kcovdbg.records.oops_words import CodeWord, find_log_words
from kcovdbg.records.pc_convention import CodeAddresses, recognize_pc, require_call_length
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.records.pc_options import Convention
from kcovdbg.records.report_table import CALL_MACHINES
from kcovdbg.symbols.function_starts import FunctionFinder, FunctionStart
from kcovdbg.symbols.symbolizer import NO_CODE, demangle_location
from kcovdbg.target.target import Target


class WrittenLocation(NamedTuple):
    """A location that somebody wrote down, in this kernel."""

    word: CodeWord
    pc: int | None
    """None if this kernel has no such function, or has not loaded it."""
    address: int | None
    """The PC plus the KASLR offset."""
    location: Location
    errors: tuple[str, ...] = ()
    is_other_build: bool = False
    """Whether the function has another size here."""
    is_missing: bool = False
    """Whether this kernel has no such function, or no code at the address."""
    is_cut: bool = False
    """Whether the end of the size may be lost: it is the start of the right size, or the function
    ends before the place.
    """


# Words for an address that KCOV does not record.
_NOT_RECORDED: Final = {
    Convention.CALL: "the address of a call",
    Convention.MINUS1: "a return address minus 1",
}


def _has_line(frames: Sequence[Frame], line: int) -> bool:
    return any(frame.line == line for frame in frames)


class WordLookup:
    """Finds written locations in the code of a kernel.

    :param names: locations of recorded PCs.
    :param locate: returns the location of an instruction of the running kernel, without frames
        where debug info has none.
    :param functions: finds functions of the kernel and its modules.
    :param is_running: whether all addresses include the KASLR offset.
    """

    def __init__(
        self,
        target: Target,
        names: LocationCache,
        locate: Callable[[int], Location],
        functions: FunctionFinder,
        *,
        is_running: bool,
    ) -> None:
        self._target = target
        self._names = names
        self._locate = locate
        self._functions = functions
        self._is_running = is_running
        self._are_calls = CALL_MACHINES.fullmatch(target.machine) is not None

    def find(self, word: CodeWord) -> Iterator[WrittenLocation]:
        """Yield the locations that a word can mean; several if several functions have its name."""
        # A stack of such a machine has the addresses of calls.
        word = word._replace(
            is_exact=word.is_exact or (self._are_calls and word.function is not None)
        )
        if word.address is not None:
            yield self._find_address(word, word.address)
            return
        assert word.function is not None
        starts = self._functions.find(word.function, word.module)
        fitting = [start for start in starts if word.size is None or start.may_have_size(word.size)]
        is_other = bool(starts) and not fitting
        chosen = fitting or starts
        for start in chosen:
            errors = []
            is_cut = False
            if is_other:
                size = start.size if start.room is None else start.room
                errors.append(
                    f"its size is {size:#x} here, not {word.size:#x}: the vmlinux is another "
                    f"build's"
                )
                is_cut = word.is_at_end and f"{start.room or 0:x}".startswith(f"{word.size:x}")
            elif start.room is not None and word.offset > start.room:
                errors.append(f"the function ends at +{start.size:#x} here")
                is_cut = word.size is None
            if len(chosen) > 1:
                errors.append(f"{len(chosen)} functions have this name")
            found = self._make_start(word, start)
            yield found._replace(errors=tuple(errors), is_other_build=is_other, is_cut=is_cut)
        if not starts:
            yield WrittenLocation(
                word, None, None, Location(0, ()), (self._explain_missing(word),), is_missing=True
            )

    def find_recorded(
        self,
        words: Sequence[CodeWord],
        convention: Convention | None,
        points: Sequence[CodeAddresses],
    ) -> Iterator[WrittenLocation]:
        """Yield the locations of words with addresses from a list of PCs.

        :param convention: what the addresses are; None to find that out by the points.
        :param points: the points of the kernel.
        :raises KcovdbgError: when the convention needs the length of a call, which is unknown.
        """
        self._names.prefetch(
            self._to_pc(word.address) for word in words if word.address is not None
        )
        call_length = CALL_LENGTHS.get(self._target.machine, 0)
        for word in words:
            if word.address is None or word.is_exact or word.is_oops:
                yield from self.find(word)
                continue
            chosen = convention
            errors: tuple[str, ...] = ()
            if chosen is None:
                found = recognize_pc(self._to_pc(word.address), points, call_length)
                chosen = found or Convention.RAW
                if chosen in _NOT_RECORDED:
                    remark = (
                        f"{word.text} is {_NOT_RECORDED[chosen]} (--pc {chosen.value}), shown by "
                        f"its return address"
                    )
                    errors = (remark,)
            require_call_length(chosen, call_length)
            address = word.address + chosen.correction(call_length)
            for row in self.find(word._replace(address=address)):
                yield row._replace(errors=(*row.errors, *errors))

    def _to_pc(self, address: int) -> int:
        if self._is_running:
            return pc_of(address, self._target.kaslr_offset)
        return address

    def _make_start(self, word: CodeWord, start: FunctionStart) -> WrittenLocation:
        if start.pc is not None:
            return self._make(word, start.pc + word.offset)
        frames: tuple[Frame, ...] = ()
        if start.place is not None and self._target.lines is not None:
            path, section, offset = start.place
            instruction = offset + word.offset - (not word.is_exact)
            frames = tuple(self._target.lines.frames_in_section(path, section, instruction))
        return WrittenLocation(word, None, None, demangle_location(Location(0, frames)))

    def _find_address(self, word: CodeWord, address: int) -> WrittenLocation:
        offset = self._target.kaslr_offset
        pc = self._to_pc(address)
        if (
            word.is_oops
            and offset
            and self._names[pc_of(address, offset)].frames
            and not self._names[address].frames
        ):
            pc = pc_of(address, offset)
        return self._make(word, pc)

    def _make(self, word: CodeWord, pc: int) -> WrittenLocation:
        address = address_of(pc, self._target.kaslr_offset)
        is_recorded = word.function is None and not word.is_exact and not word.is_oops
        location = Location(address, ())
        if not is_recorded:
            # A coverage point's row may be of a function that recorded its caller by a tail call.
            # A report without a place for something has a 0 there.
            location = self._locate((address - (not word.is_exact)) & WORD_MASK)
        said = word.said_line
        if word.is_exact and said is not None and not _has_line(location.frames, said):
            # Where WARN() is no trap but a call, its place is a return address.
            called = self._locate(address - 1)
            if _has_line(called.frames, said):
                return self._make(word._replace(is_exact=False), pc)
        if location.frames:
            location = location._replace(address=address)
        else:
            # Names are of the instruction before an address.
            location = self._names[pc + word.is_exact]
        if location.frames and not is_recorded:
            # It need not be a coverage point.
            location = location._replace(remark=None, approximate=False)
        is_missing = location.remark in NO_CODE
        return WrittenLocation(word, pc, address, location, is_missing=is_missing)

    def _explain_missing(self, word: CodeWord) -> str:
        if word.module is None:
            return f"this kernel has no function {word.function}"
        if self._functions.knows_module(word.module):
            return (
                f"module {word.module} has no function {word.function}, or its debug info is "
                f"missing: -s {word.module}.ko"
            )
        return f"module {word.module} is unknown: -s {word.module}.ko"


class FoundWord(NamedTuple):
    """A word of a log, and the locations that it can mean."""

    word: CodeWord
    choices: Sequence[WrittenLocation]
    """Empty for a word that another CPU's message cut off."""

    @property
    def is_other_text(self) -> bool:
        """Whether it only looks like a place in the kernel: UTC+2, an address of user space."""
        if not self.choices or self.word.is_sure:
            return False
        return not any(row.location.frames for row in self.choices)


def find_log_locations(lookup: WordLookup, lines: Sequence[LogLine]) -> list[list[FoundWord]]:
    """Return the words in each line of a log, without other text that looks like a word."""
    found: list[list[FoundWord]] = []
    for words in find_log_words(lines):
        of_line = [FoundWord(word, _find_choices(lookup, word)) for word in words]
        found.append([one for one in of_line if not one.is_other_text])
    return found


def _find_choices(lookup: WordLookup, word: CodeWord) -> Sequence[WrittenLocation]:
    if word.is_torn:
        return ()
    choices = tuple(lookup.find(word))
    if any(row.is_cut for row in choices):
        return ()
    return choices
