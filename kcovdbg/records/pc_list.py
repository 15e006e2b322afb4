# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make buffers of the lists of PCs that other tools write, with remarks on how each was read."""

from __future__ import annotations

import operator
import platform
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.address import WORD_MASK
from kcovdbg.abi.record import CALL_LENGTHS, EXACT, PC
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer, ListFit, Order
from kcovdbg.model.kcov import amount_text, name_some
from kcovdbg.model.location import LoadedModule
from kcovdbg.records.executed_addresses import (
    ExactReading,
    is_instruction_run,
    move_words,
    read_exactly,
)
from kcovdbg.records.pc_convention import (
    CodeAddresses,
    PcReading,
    count_points,
    find_convention,
    require_call_length,
)
from kcovdbg.records.pc_counts import to_words
from kcovdbg.records.pc_file import NotATraceError, PcFile, is_upper
from kcovdbg.records.pc_options import AUTO, Convention, ReadingOptions, WordReading

if TYPE_CHECKING:
    from kcovdbg.records.oops_words import CodeWord
    from kcovdbg.records.written_locations import WrittenLocation

# A smaller share of PCs that are points is suspicious; real raw traces had 95.7 to 97 %
# (docs/coverage.md).
_SUSPICIOUS: Final = 0.5
FEW: Final = 20
"""So many PCs decide what they are; fewer fit several conventions by chance."""
# So many distinct PCs in sorted order are no run: one run in 120 has them so by chance.
_SORTED: Final = 5
# Limit for indexes of records in a remark.
_NAMED: Final = 5
# The smallest share of points in a list of points, and of points and starts of blocks together in
# an emulator's list of blocks.
_POINTS: Final = 0.75
# The smallest share of starts in such a list of blocks.
_STARTS: Final = 0.25
# Edges begin at a jump, and end where a block begins.
_EDGES: Final = 0.4
_REACH: Final = 1 << 31


class TraceKernel(NamedTuple):
    """The kernel that a trace is read for."""

    build_id: str | None = None
    kaslr_offset: int = 0
    machine: str = ""
    find_points: Callable[[], Sequence[CodeAddresses] | None] = lambda: None
    """Returns the PCs that it can record, of the image first; None where they are unknown."""
    find_modules: Callable[[], Sequence[LoadedModule] | None] = tuple
    """Returns where its modules are, with addresses as KCOV records them; None where that is
    unknown.
    """
    find_base: Callable[[str], int | None] = lambda _: None
    """Returns where the code of the image or of a module starts, by its file name, as KCOV records
    addresses.
    """
    find_code: Callable[[], CodeAddresses | None] = lambda: None
    """Returns the blocks of the image's code; None where they are unknown."""
    find_places: Callable[[CodeWord], Sequence[WrittenLocation]] = lambda _: ()
    """Returns where a function with an offset is."""


NO_KERNEL: Final = TraceKernel(machine=platform.machine())
"""Stands for a kernel that is not named: most traces are of machines like this one."""


def find_low_code(kernel: TraceKernel) -> tuple[int, int]:
    """Return the range of the code of a kernel in the lower half of addresses, as on s390x; an
    empty range for other kernels.
    """
    points = kernel.find_points()
    if not points or is_upper(points[0].base):
        return (0, 0)
    start, end = points[0].code
    return (max(start - _REACH, start // 2), end + _REACH)


def make_buffer(name: str, found: PcFile, kernel: TraceKernel) -> Buffer:
    """Return the addresses in a file as a buffer of 64-bit words.

    :raises KcovdbgError: when it is unknown where a module is that offsets count from.
    """
    words = found.words
    file_words: array[int] | None = found.words
    remarks: list[str] = []
    of_functions = _find_functions(found, kernel)
    if of_functions is not None:
        words, remarks = _locate_places(name, of_functions, kernel)
        remarks.append("offsets of functions are decimal, as bpftrace prints them")
        file_words = None
    elif found.modules:
        words = _add_bases(name, found, kernel)
    elif found.places:
        words, remarks = _locate_places(name, found, kernel)
        file_words = None
    words = to_words(words)
    order = _find_order(words)
    if found.disorder and len(words) > 1:
        order = Order(False, found.disorder)
    if found.skipped:
        remark = f"{amount_text(found.skipped, 'line')} without an address skipped"
        if found.first_skipped is not None:
            number, line = found.first_skipped
            remark += f"; line {number}: '{line}'"
        remarks.append(remark)
    if found.lists_all_points:
        remarks.append("its points are all those of the functions that it lists, covered or not")
    if found.others:
        remarks.append(
            f"{found.others} addresses are left out: of user space or firmware, or of callers"
        )
    return Buffer(
        name,
        record.make_encoding(PC, 8, found.big_endian),
        words,
        len(words),
        remarks=tuple(remarks),
        order=order,
        file_words=file_words,
        listed_code=found.listed_code,
    )


def _find_order(words: Sequence[int]) -> Order:
    """Return whether the PCs of a list are in the order of a run, by how they are sorted."""
    if len(words) < 2:
        return Order()
    rises = all(map(operator.le, words, islice(words, 1, None)))
    falls = all(map(operator.ge, words, islice(words, 1, None)))
    if not rises and not falls:
        return Order()
    if len(set(words)) < _SORTED:
        return Order(None, f"its {len(words)} PCs are sorted, which so few may be by chance")
    return Order(False, "its PCs are sorted, as in a set")


def _find_functions(found: PcFile, kernel: TraceKernel) -> PcFile | None:
    """Return a list of functions with decimal offsets as places: it was read as a list of modules
    with hexadecimal offsets. Return None for any other list.
    """
    if not found.modules:
        return None
    if any(module.base or kernel.find_base(module.name) for module in found.modules):
        return None
    from kcovdbg.records.oops_words import find_code_words

    places: dict[CodeWord, int] = {}
    words = array("Q")
    for offset, module in zip(found.words, found.module_of, strict=True):
        digits = f"{offset:x}"
        place = None
        if digits.isdecimal():
            place = next(iter(find_code_words(f"{found.modules[module].name}+{digits}")), None)
        if place is None:
            return None
        words.append(places.setdefault(place._replace(span=(0, 0)), len(places)))
    located = chain.from_iterable(map(kernel.find_places, places))
    if all(one.pc is None for one in located):
        return None
    return found._replace(words=words, modules=(), places=tuple(places))


def _add_bases(name: str, found: PcFile, kernel: TraceKernel) -> array[int]:
    """Return the words of a file with offsets as addresses."""
    bases: list[int] = []
    for module in found.modules:
        # A file's 0 is no address.
        base = kernel.find_base(module.name) or module.base
        if not base:
            hint = "name the kernel: -s VMLINUX, or a dump in which the module is loaded"
            if "." not in module.name:
                hint += "; offsets of a function have 0x, or are decimal"
            raise KcovdbgError(
                f"{name.removeprefix('file:')}: unknown where '{module.name}' is loaded, which "
                f"its offsets count from",
                hint=hint,
            )
        bases.append(base)
    pairs = zip(found.words, found.module_of, strict=True)
    return array("Q", [offset + bases[module] & WORD_MASK for offset, module in pairs])


def _locate_places(name: str, found: PcFile, kernel: TraceKernel) -> tuple[array[int], list[str]]:
    """Return the return addresses that functions with offsets stand for, and remarks on places
    without one.

    :raises KcovdbgError: when no place has one.
    """
    pcs: list[int | None] = []
    missing: list[str] = []
    strange: list[str] = []
    shared: list[str] = []
    for place in found.places:
        choices: list[WrittenLocation] = []
        # A function's start is no return address.
        if place.offset:
            choices = [one for one in kernel.find_places(place) if one.pc is not None]
        if not choices:
            pcs.append(None)
            missing.append(place.text)
            continue
        pcs.append(choices[0].pc)
        if choices[0].is_other_build:
            strange.append(place.text)
        elif len(choices) > 1:
            shared.append(place.text)
    if len(missing) == len(pcs):
        hint = "is it another kernel's?"
        if kernel is NO_KERNEL:
            hint = "name the kernel that its functions are of: -s VMLINUX"
        path = name.removeprefix("file:")
        raise KcovdbgError(f"{path}: unknown where '{missing[0]}' is", hint=hint)
    words = array("Q")
    for index in found.words:
        pc = pcs[index]
        if pc is not None:
            words.append(pc)
    problems = (
        (missing, "are not in this kernel, or no return addresses, and left out"),
        (strange, "are of functions that have another size here: the vmlinux is another build's"),
        (shared, "are of several functions with one name: the first is taken"),
    )
    remarks = []
    for texts, problem in problems:
        if texts:
            named = name_some(texts, _NAMED)
            remarks.append(f"{len(texts)} of {len(pcs)} places {problem}: {named}")
    return words, remarks


def interpret(
    buffer: Buffer, listed: PcFile, kernel: TraceKernel, options: ReadingOptions
) -> Buffer:
    """Return a buffer with its PCs as KCOV records them, whatever convention its file has.

    :param listed: the content of its file.
    :raises KcovdbgError: when they cannot be of this kernel, or the convention that the user names
        needs the length of a call.
    """
    if buffer.encoding.codec != PC or not buffer.words:
        return buffer
    interpreter = _Interpreter(kernel, options)
    # The offset that the user names is subtracted first.
    buffer = _shift(buffer, -interpreter.named_offset)
    named = None if options.pc == AUTO else Convention(options.pc)
    if named is Convention.EXACT or (named is None and listed.is_exact):
        return interpreter.read_as_exact(buffer)
    if named is not None:
        return interpreter.read_as_named(buffer, named)
    return interpreter.find_out(buffer, names_pcs=listed.names_pcs)


class _Interpreter:
    """Finds out what the PCs of lists are, and says so in remarks."""

    def __init__(self, kernel: TraceKernel, options: ReadingOptions) -> None:
        self._kernel = kernel
        self._options = options
        self._call_length = CALL_LENGTHS.get(kernel.machine, 0)
        self._points = kernel.find_points()
        self._unjudged: Sequence[str] = ()
        """A remark if the kernel's points are unknown, such as those of an image without its code.
        Names prove nothing: most addresses of another build are in some function as well.
        """
        if not self._points and kernel is not NO_KERNEL:
            self._unjudged = (
                "whether the PCs are of this kernel is unknown, since its coverage points are",
            )
        self.named_offset = options.kaslr_offset or 0
        """The KASLR offset that the user named, which is subtracted already; 0 for none."""
        # The KASLR offset that words may include; None for none but the user's.
        self._likely_offset: int | None = None
        if options.kaslr_offset is None:
            self._likely_offset = kernel.kaslr_offset

    def find_out(self, buffer: Buffer, *, names_pcs: bool) -> Buffer:
        """Return a buffer read in the convention that its PCs fit.

        :param names_pcs: whether its format says that these are PCs.
        """
        is_list = buffer.stored_count is None
        assumed = self._options.assumed if is_list else None
        if assumed is not None and self._points and len(set(buffer.words)) < FEW:
            return self._read_as_beside(buffer, assumed)
        found = self._find_reading(buffer)
        if is_list and assumed is None:
            exact = self._recognize_exact(buffer, found)
            if exact is not None:
                return exact
        if found is not None:
            if found.in_reach < _SUSPICIOUS and not names_pcs:
                raise self._refuse_far(buffer)
            return self._apply(buffer, found)
        if not is_list:
            return buffer
        remark = (
            "convention of the PCs unknown: taken as recorded, as kcovtrace writes them; for "
            "syzkaller's rawcover use --pc call"
        )
        return buffer.with_remarks(*self._unjudged, remark)

    def read_as_named(self, buffer: Buffer, convention: Convention) -> Buffer:
        """Return a buffer read in the convention that the user named."""
        require_call_length(convention, self._call_length)
        shifted = _shift(buffer, convention.correction(self._call_length))
        return self._judge(shifted, convention)

    def _read_as_beside(self, buffer: Buffer, assumed: WordReading) -> Buffer:
        """Return a list that is too short to decide, read as the lists beside it."""
        convention = assumed.convention
        remark = (
            f"too few PCs to find out what they are: read as the lists beside it, "
            f"{convention.text(self._call_length)}"
        )
        shifted = _shift(buffer, assumed.correction)
        return self._judge(shifted.with_remarks(remark), convention)

    def _judge(self, buffer: Buffer, convention: Convention) -> Buffer:
        """Return a buffer that was read in a named convention, and note how well it fits."""
        if not self._points:
            return buffer.with_remarks(*self._unjudged)
        words = to_words(buffer.words)
        known = count_points(words, self._points)
        remark = (
            f"{known} of {len(words)} PCs are coverage points of this kernel, read as "
            f"{convention.value}: are they another build's?"
        )
        fit = ListFit(known, len(words), remark)
        if not fit.is_low:
            return replace(buffer, fit=fit)
        return buffer.with_remarks(remark, fit=fit)

    def _find_reading(self, buffer: Buffer) -> PcReading | None:
        """Return what the words of a buffer mean as points; None where the kernel's points are
        unknown.
        """
        if not self._points:
            return None
        loaded = self._kernel.find_modules() or ()
        modules = [(module.name, *module.span) for module in loaded if module.sections]
        return find_convention(
            to_words(buffer.words),
            self._points,
            self._call_length,
            kaslr_offset=self._likely_offset,
            modules=modules,
            least=FEW,
        )

    def _refuse_far(self, buffer: Buffer) -> NotATraceError:
        assert self._points
        start, end = self._points[0].code
        return NotATraceError(
            buffer.name.removeprefix("file:"),
            "addresses of something else",
            detail=f"the code of this kernel is at {start:#x}-{end:#x}",
            hint="--pc raw takes them as recorded; is it another kernel's trace?",
        )

    def _apply(self, buffer: Buffer, found: PcReading) -> Buffer:
        """Return a buffer with its words as they are meant, and remarks on that."""
        is_buffer = buffer.stored_count is not None
        find_remarks = self._name_readings if found.choices is None else self._name_choices
        remarks = tuple(find_remarks(found, is_quiet=is_buffer))
        hint = None
        if found.choices and found.choices[0].records > found.points:
            hint = self._name_options(found.choices[0])
        return buffer.with_remarks(
            *remarks,
            words=found.words,
            encoding=record.make_encoding(PC, 8, buffer.encoding.big_endian),
            fit=ListFit(found.points, found.judged, remarks[0] if remarks else "", hint),
        )

    # Executed addresses.

    def _recognize_exact(self, buffer: Buffer, reading: PcReading | None) -> Buffer | None:
        """Return a list read as executed addresses; None where it is another list.

        :param reading: what its words mean as points.
        """
        words = to_words(buffer.words)
        if reading is not None and _count_points(reading) >= _POINTS * len(words):
            return None
        code = self._kernel.find_code()
        if code is None:
            return None
        found = read_exactly(words, code, self._likely_offset)
        has_edges = found.starts >= _EDGES * found.sample and found.sample >= FEW
        is_exact = found.has_blocks
        if found.is_certain and not is_exact:
            is_exact = has_edges or is_instruction_run(words)
        if is_exact or self._is_beside_points(words, found):
            return self._make_exact(buffer, found, how="by the starts of blocks")
        return None

    def _is_beside_points(self, words: array[int], found: ExactReading) -> bool:
        """Return whether addresses begin blocks of an emulator. An emulator's block ends at each
        call, so the block after the call of a callback begins at a point.
        """
        if not self._points:
            return False
        distinct = array("Q", set(move_words(words, found.kaslr_offset)))
        at_points = count_points(distinct, self._points) / len(distinct)
        starts = found.starts / found.sample
        return starts >= _STARTS and starts + at_points >= _POINTS and len(distinct) >= FEW

    def read_as_exact(self, buffer: Buffer) -> Buffer:
        """Return a list of executed addresses, without the KASLR offset that these include."""
        code = self._kernel.find_code()
        if code is not None:
            found = read_exactly(buffer.words, code, self._likely_offset)
            return self._make_exact(buffer, found, how="by its format or --pc")
        remark = (
            "read as addresses of executed code, in an unknown place: the blocks of the kernel's "
            "code are unknown"
        )
        return buffer.with_remarks(
            remark,
            words=to_words(buffer.words),
            encoding=record.make_encoding(EXACT, 8, buffer.encoding.big_endian),
        )

    def _make_exact(self, buffer: Buffer, found: ExactReading, *, how: str) -> Buffer:
        """Return a list read as executed addresses.

        :param how: how kcovdbg knows that it is one.
        """
        offset = found.kaslr_offset
        text = (
            f"addresses of executed code ({how}): {found.starts} of {found.sample} looked at begin "
            f"a block"
        )
        if offset and found.is_certain:
            text += f", with the KASLR offset {offset:#x} included"
            if offset != self._kernel.kaslr_offset:
                text += ", which was found by them"
        if found.inside * 2 < found.sample:
            text += (
                f"; only {found.inside} are in the code of this kernel (is this another kernel's?)"
            )
        remarks = [text]
        listed = buffer.listed_code
        if listed is None:
            remarks.append(
                "other code may have been executed as well: what is not listed is unknown"
            )
        else:
            listed = move_words(listed, offset)
        return buffer.with_remarks(
            *remarks,
            words=move_words(buffer.words, offset),
            encoding=record.make_encoding(EXACT, 8, buffer.encoding.big_endian),
            listed_code=listed,
            fit=ListFit(found.inside, found.sample, text),
        )

    # Remarks.

    def _name_readings(self, found: PcReading, *, is_quiet: bool) -> Iterator[str]:
        """Yield remarks on the words.

        :param is_quiet: whether to omit remarks on ordinary KCOV buffers.
        """
        share = found.share
        plain = [reading for reading in found.readings if reading.module is None]
        is_usual = (
            len(plain) == 1
            and plain[0].convention is Convention.RAW
            and not self._included_offset(plain[0])
        )
        if share is not None and not (is_quiet and is_usual and share >= _SUSPICIOUS):
            yield self._name_conventions(plain, share)
        for reading in found.readings:
            if reading.module is not None:
                direction = "low" if reading.shift > 0 else "high"
                yield (
                    f"{reading.records} PCs in module {reading.module} are {abs(reading.shift):#x} "
                    f"too {direction}: read from where its code is"
                )
        if found.restored:
            yield restored_remark(found.restored)
        if found.unjudged:
            yield (
                f"{found.unjudged} PCs are in code whose coverage points are unknown: read as the "
                f"others are"
            )
        damaged = found.damaged
        if damaged:
            indexes = ", ".join(map(str, islice(damaged, _NAMED)))
            more = ", …" if len(damaged) > _NAMED else ""
            remark = (
                f"{len(damaged)} of {len(found.words)} PCs are no coverage points in any "
                f"convention and left as they are"
            )
            yield f"{remark}: records {indexes}{more}"

    def _name_choices(self, found: PcReading, *, is_quiet: bool) -> Iterator[str]:
        """Yield the conventions that words may have which are too few to decide.

        :param is_quiet: as for :meth:`_name_readings`.
        """
        is_usual = found.share is not None and found.share >= _SUSPICIOUS
        if not (is_quiet and is_usual):
            texts = []
            for way in found.choices or ():
                text = f"{way.records} are {self._name(way)} ({self._name_options(way)})"
                texts.append(text)
            fitting = ", ".join(texts) or "none is a coverage point in any convention"
            yield (
                f"{len(found.words)} PCs are too few to find out what they are, and taken as "
                f"recorded: {fitting}"
            )
        if found.restored:
            yield restored_remark(found.restored)

    def _name_conventions(self, readings: Sequence[WordReading], share: float) -> str:
        if len(readings) > 1:
            parts = [f"{reading.records} are {self._name(reading)}" for reading in readings]
            return f"PCs of {len(readings)} conventions, each read in its own: {', '.join(parts)}"
        what = self._name(readings[0]) if readings else "coverage points"
        text = f"PCs in the file: {_percent(share)} of them are {what}"
        if share < _SUSPICIOUS:
            text += " (suspiciously few; is this another kernel's trace?)"
        return text

    def _included_offset(self, reading: WordReading) -> int:
        """Return the KASLR offset that words include, with what the user named."""
        return reading.kaslr_offset + self.named_offset

    def _name(self, reading: WordReading) -> str:
        """Return words for the PCs of a convention."""
        text = reading.convention.text(self._call_length)
        offset = self._included_offset(reading)
        if not offset:
            return text
        if offset < 0:
            return f"{text}, with the KASLR offset {-offset:#x} subtracted twice"
        text += f", with the KASLR offset {offset:#x} included"
        if offset != self._kernel.kaslr_offset:
            text += ", which was found by the coverage points"
        return text

    def _name_options(self, reading: WordReading) -> str:
        """Return the options that read PCs in one way."""
        options = f"--pc {reading.convention.value}"
        offset = self._included_offset(reading)
        if offset or self._kernel.kaslr_offset:
            options += f" --kaslr-offset {offset:#x}"
        return options


def _count_points(reading: PcReading) -> int:
    """Return how many words are points at most.

    Words that are too few to decide are all tried in each convention.
    """
    if reading.choices:
        return reading.choices[0].records
    return reading.points


def _shift(buffer: Buffer, correction: int) -> Buffer:
    """Return a buffer with a number added to each word; words that would not fit are left out."""
    if not correction:
        return buffer
    typecode = buffer.words.typecode
    limit = WORD_MASK if typecode == "Q" else WORD_MASK >> 32
    moved = map(correction.__add__, buffer.words)
    words = array(typecode, filter(range(limit + 1).__contains__, moved))
    shifted = replace(buffer, words=words, count=len(words))
    lost = len(buffer.words) - len(words)
    if not lost:
        return shifted
    remark = f"{lost} addresses at the end of the address space skipped: no call can be there"
    return replace(shifted, file_words=None, remarks=(*buffer.remarks, remark))


def _percent(share: float) -> str:
    """Return a share as text that is 100% only where it is all, and 0% only where it is nothing."""
    if share not in (0, 1):
        share = min(max(share, 0.01), 0.99)
    return f"{share:.0%}"


def restored_remark(count: int) -> str:
    """Return the remark about PCs of which a file has the lower halves."""
    return f"{count} PCs lack their upper 32 bits: restored from the kernel's base"
