# SPDX-License-Identifier: LGPL-2.1-or-later
"""UNIQ_PC, UNIQ_EDGE and UNIQ_CMP: the kernel records each address, edge or comparison once. By
Jiao Joey, January 2025 (kcov-abi.md 5).

An object has two hash maps: ``kcov->map`` for addresses and comparisons, ``kcov->map_edge`` for
edges. A map has 32768 buckets, memory for its entries (``struct kcov_entry``), a pool that
allocates entries in this memory, and a buffer for the records of its entries.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.abi.address import page_align
from kcovdbg.abi.generations import KCOV, MODE
from kcovdbg.abi.mode import EnableRequest, Mode
from kcovdbg.abi.record import CMP, PC, Codec, PartialAddress, RecordKind, record_words
from kcovdbg.errors import MissingTypeError, ReadError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import KcovFields, name_some
from kcovdbg.model.rule import (
    Hex,
    KnownBug,
    Rule,
    Shown,
    Violation,
    Violations,
    kcov_violation,
    values,
)
from kcovdbg.model.state import Part, State
from kcovdbg.series.declaration import (
    BufferReader,
    ObjectField,
    RecordLimit,
    SecondBuffer,
    Series,
    SeriesMember,
    Variant,
    read_known,
)
from kcovdbg.target.pointer import (
    check_pointer,
    finish,
    follow_chain,
    is_kernel_pointer,
    read_pointer,
    read_word,
    read_words,
    strip_tag,
)
from kcovdbg.target.struct_layout import BlockLayout
from kcovdbg.target.target import Target

UNIQUE_MAPS: Final = "unique-maps"
"""Feature: hash maps, and a second mapping for edges."""

MAP: Final = "struct kcov_map"
ENTRY: Final = "struct kcov_entry"
MEMBERS: Final = ("map", "map_edge")
"""Members of an object: the map of addresses and comparisons, and the map of edges."""
UNIQ_EDGE: Final = "TRACE_UNIQ_EDGE"
UNIQ_BOTH: Final = "TRACE_UNIQ_PC|TRACE_UNIQ_EDGE"
"""The only modes that can be combined."""
PREFIX: Final = "TRACE_UNIQ_"

# Limits for the entries of a map, and for the words of the buckets and entries of all maps. The
# buckets of a map take _BUCKETS words.
_MAX_ENTRIES: Final = 1 << 20
_MAX_WORDS: Final = 1 << 26
_BUCKETS: Final = 1 << 15
# Limit for the entries of one bucket.
_MAX_CHAIN: Final = 1 << 10
_PARTS: Final = ("pool", "mem", "area")
_SINCE: Final = "the unique-mode series of January 2025"
_MODES: Final = ("KCOV_MODE_TRACE_UNIQ_PC", "KCOV_MODE_TRACE_UNIQ_EDGE", "KCOV_MODE_TRACE_UNIQ_CMP")

_HASH_MASK: Final = 0xFFF


class _EdgeCodec(Codec):
    __slots__ = ()

    def split_word(self, word: int) -> PartialAddress | None:
        page, mixed = word & ~_HASH_MASK, word & _HASH_MASK
        problem = "the low 12 bits are mixed with the previous address"
        return PartialAddress(f"page {page:#x}", f"hash {mixed:#05x}", problem)


EDGE: Final[Codec] = _EdgeCodec(
    "uniq-edge", "edges", kind=RecordKind.EDGE, has_plain_pcs=False, has_addresses=False
)
"""One word per record: an address whose low 12 bits are mixed with a hash of the previous one."""


class KcovMap(NamedTuple):
    """The members of ``struct kcov_map`` without the buckets."""

    address: int
    pool: int
    """``struct gen_pool *``."""
    mem: int
    """Memory of the entries."""
    area: int
    """The buffer."""


class MapEntry(NamedTuple):
    """``struct kcov_entry``."""

    address: int
    ent: int
    """The recorded word: an address or an edge."""
    comparison: tuple[int, int, int]
    """The record's type, arg1 and arg2; zeros in an entry that is no comparison."""


class MapEntries(NamedTuple):
    """The entries of a map."""

    entries: tuple[MapEntry, ...]
    """The entries by bucket, up to a problem."""
    problem: str | None = None
    """Why a chain could not be followed."""
    is_absent: bool = False
    """Whether the problem is unreadable memory of an entry, and not damage."""


def read_map(target: Target, kcov: int, member: str) -> KcovMap | None:
    """Read one of an object's maps.

    :param kcov: ``struct kcov *``.
    :param member: one of ``MEMBERS``.
    :return: None if the object has no such map.
    :raises ReadError: if it is unreadable.
    :raises MissingTypeError: if the debug info lacks its type or a member.
    """
    address = read_pointer(target, kcov + target.member(KCOV, member).offset)
    if not address:
        return None
    check_pointer(target, address, MAP)
    layout = BlockLayout(target, MAP, " ".join(_PARTS)).require()
    return KcovMap(address, *layout.read(target, address))


def read_entries(target: Target, found: KcovMap, chunk: int, words: int) -> MapEntries:
    """Read a map's entries.

    :param chunk: bytes of the map's memory for each entry.
    :param words: the object's size in words, which is also the limit for entries.
    :raises ReadError: if the buckets are unreadable.
    :raises MissingTypeError: if the debug info lacks the structures.
    """
    buckets = target.member(MAP, "buckets")
    node = target.member(ENTRY, "node").offset
    # In a kernel without comparisons, an entry is only an address.
    fields = BlockLayout(target, ENTRY, "ent type arg1 arg2 node.next")
    count = buckets.size // target.word_size
    heads = read_words(target, found.address + buckets.offset, count)
    end = found.mem + words * chunk
    absent = False

    def read_entry(link: int, before: int) -> tuple[MapEntry, int | None]:
        nonlocal absent
        address = link - node
        if not found.mem <= address < end or (address - found.mem) % chunk:
            led = f"{before:#x} leads to" if before else "a bucket leads to"
            raise ReadError(f"{led} {address:#x}, which is no piece of its memory", address)
        try:
            ent, kind, arg1, arg2, following = fields.read(target, address)
        except ReadError:
            absent = True
            raise
        return MapEntry(address, ent, (kind or 0, arg1 or 0, arg2 or 0)), following

    entries: list[MapEntry] = []
    for head in filter(None, heads):
        chain, problem = finish(
            follow_chain(strip_tag(target, head), 0, read_entry, words - len(entries))
        )
        entries += chain
        if problem is not None:
            return MapEntries(tuple(entries), problem, absent)
    return MapEntries(tuple(entries))


def _is_used_up(target: Target, kcov: int, mode: str, words: int) -> bool:
    """Return whether all entries of a mode's map are used, so that nothing new is recorded.

    A pool allocates the first free piece of its memory, and frees no piece before the object is
    freed. So if the last piece is an entry of the map, all pieces are.
    """
    if not mode.startswith(PREFIX):
        return False
    found = read_map(target, kcov, "map_edge" if mode == UNIQ_EDGE else "map")
    if found is None:
        return False
    chunk = _chunk_size(target)
    try:
        return _is_linked(target, found, found.mem + (words - 1) * chunk)
    except ReadError:
        # A slice lacks the pages without entries: count the entries.
        if words > _MAX_ENTRIES:
            raise
        entries = read_entries(target, found, chunk, words)
        if entries.problem is not None:
            raise
        return len(entries.entries) == words


def _is_linked(target: Target, found: KcovMap, entry: int) -> bool:
    """Return whether an entry's memory is in a map: its links back lead to a bucket. Otherwise it
    is left over from another map.
    """
    buckets, word = target.member(MAP, "buckets"), target.word_size
    first = found.address + buckets.offset
    node = entry + target.member(ENTRY, "node").offset
    for _ in range(_MAX_CHAIN):
        before = read_pointer(target, node + word)
        if not is_kernel_pointer(target, before) or read_pointer(target, before) != node:
            return False
        if first <= before < first + buckets.size:
            return True
        # The link of the entry before is the first member of its node.
        node = before
    return False


def _chunk_size(target: Target) -> int:
    """Return the bytes of a map's memory for each entry. Pools allocate powers of two."""
    return 1 << (target.type_size(ENTRY) - 1).bit_length()


def _find_edges(target: Target, kcov: int) -> int:
    """Return the buffer of edges: ``kcov->map_edge->area``."""
    found = read_map(target, kcov, "map_edge")
    if found is None:
        raise ReadError(f"kcov {kcov:#x} has no map_edge", kcov)
    return found.area


_EDGE_FIELDS: Final = (
    ObjectField(
        name="edge_area",
        meaning="address of the buffer for edges",
        null="this kernel has none",
        after="area",
        is_address=True,
        priority=7,
    ),
    ObjectField(
        name="edge_count",
        meaning="number of edges in that buffer",
        null="this kernel has none, or it could not be read",
        unit="records",
        after="count",
        title="EDGES",
        priority=2,
    ),
)


def _read_edges(target: Target, kcov: KcovFields) -> tuple[Mapping[str, int | None], Sequence[str]]:
    """Read the address of an object's buffer for edges, and its count."""
    if not kcov.area:
        return {"edge_area": kcov.area, "edge_count": None}, ()
    area = count = None
    problems = []
    try:
        area = _find_edges(target, kcov.address)
        check_pointer(target, area, "buffer")
        count = read_word(target, area)
    except (ReadError, MissingTypeError) as error:
        problems.append(f"buffer for edges: {error}")
    return {"edge_area": area, "edge_count": count}, problems


def _find_allocations(target: Target, kcov: int) -> frozenset[int]:
    """Return the buffers and the memory of entries of the readable maps."""
    maps = read_known(lambda member: read_map(target, kcov, member), MEMBERS)
    return frozenset(address for found in maps.values() for address in (found.mem, found.area))


class ReadMap(NamedTuple):
    """One map of an initialized object, its entries and its buffer."""

    kcov: KcovFields
    mode: str | None
    member: str
    """One of ``MEMBERS``."""
    map: KcovMap | None
    """None if the object has no such map."""
    chunk: int
    """Bytes of its memory for each entry."""
    entries: MapEntries | None = None
    """None if the map cannot have entries, or they are unreadable or too many."""
    buffer: Buffer | None = None
    """None if it is not read, because it may hold records without an entry."""

    def violation(self, message: str, shown: Shown, *, is_user: bool = False) -> Violation:
        """Return a violation about the map.

        :param is_user: whether user space may have written the inconsistent data.
        """
        return kcov_violation(
            self.kcov.address,
            f"its {self.member} {message}",
            shown,
            Certainty.UNSURE if is_user else Certainty.CERTAIN,
            "user space can write its buffer" if is_user else None,
            tasks=(self.kcov.task,) if self.kcov.task else (),
            severity=Severity.WARNING if is_user else None,
        )


def _read(target: Target, state: State, read_buffer: BufferReader) -> tuple[object, Sequence[str]]:
    """Read both maps of each object; unreadable maps are left out."""
    found: list[ReadMap] = []
    unread: list[str] = []
    budget = _MAX_WORDS
    for address, fields in state.kcovs.items():
        kcov = state.objects[address]
        # The last mode of an object that is not enabled is unknown: it may have been a unique one.
        is_unique = (kcov.mode or "").startswith(PREFIX)
        may_have_entries = is_unique or (not kcov.is_enabled and fields.sequence != 1)
        if not fields.mode:
            continue
        for member in MEMBERS:
            try:
                kcov_map = read_map(target, address, member)
                chunk = _chunk_size(target)
            except (ReadError, MissingTypeError):
                continue
            read = ReadMap(fields, kcov.mode, member, kcov_map, chunk)
            if kcov_map is not None and fields.size and may_have_entries:
                # Each entry takes a read.
                if fields.size > _MAX_ENTRIES or budget < _BUCKETS:
                    unread.append(f"{address:#x}.{member}")
                else:
                    budget -= _BUCKETS
                    with contextlib.suppress(ReadError, MissingTypeError):
                        entries = read_entries(target, kcov_map, chunk, fields.size)
                        read = read._replace(entries=entries)
                        budget -= 8 * len(entries.entries)
                read = read._replace(buffer=_read_records(read, read_buffer))
            found.append(read)
    if not unread:
        return tuple(found), ()
    note = f"{len(unread)} hash maps are too long to be checked: {name_some(unread)}"
    return tuple(found), (note,)


def _read_records(read: ReadMap, read_buffer: BufferReader) -> Buffer | None:
    """Read the buffer of a map if all its records have entries, as in an object's first session if
    that is in a unique mode.
    """
    mode, fields, has_edges = read.mode or "", read.kcov, read.member == "map_edge"
    if read.map is None or read.entries is None or read.entries.problem is not None:
        return None
    is_written = UNIQ_EDGE in mode if has_edges else mode != UNIQ_EDGE
    if fields.sequence != 1 or not mode.startswith(PREFIX) or not is_written or not fields.size:
        return None
    name = f"kcov:{fields.address:#x}"
    if has_edges and mode == UNIQ_BOTH:
        name = f"area:{read.map.area:#x}"
    buffer = read_buffer(name, fields.size)
    if buffer is None or buffer.address != read.map.area:
        return None
    return buffer


_rule = partial(Rule, since="posted series of January 2025", features=(UNIQUE_MAPS,))


def _maps(state: State) -> tuple[ReadMap, ...]:
    found: tuple[ReadMap, ...] = state.series[UNIQUE_MAPS]
    return found


def _read_maps(state: State) -> Iterator[tuple[ReadMap, KcovMap, MapEntries]]:
    """Yield the maps whose entries were read."""
    for found in _maps(state):
        if found.map is not None and found.entries is not None:
            yield found, found.map, found.entries


@_rule(
    "M1",
    "an initialized object has both maps, with pool, memory and buffer, and the first one's "
    "buffer is the object's own",
    guaranteed_by="kcov_map_init()",
    consequence="Recording faults, or writes into a buffer that user space does not read.",
    needs=Part.SERIES,
)
def _check_whole(state: State) -> Violations:
    for found in _maps(state):
        if found.map is None:
            yield found.violation("is missing", values(**{found.member: Hex(0)}))
            continue
        shown = values(**{name: Hex(getattr(found.map, name)) for name in _PARTS})
        lacking = [name for name in _PARTS if not getattr(found.map, name)]
        area = found.kcov.area
        if lacking:
            yield found.violation(f"is half built: it has no {' and no '.join(lacking)}", shown)
        elif found.member == "map" and area is not None and found.map.area != area:
            message = f"has the buffer {found.map.area:#x}, the object has {area:#x}"
            yield found.violation(message, (*shown, ("kcov.area", hex(area))))


@_rule(
    "M2",
    "a map's buffer and memory are as long as the object's size requires",
    guaranteed_by="kcov_map_init()",
    consequence="Entries or records are written past the end of their memory.",
    needs=Part.SERIES | Part.VMALLOC,
)
def _check_room(state: State) -> Violations:
    if state.vmalloc is None:
        return
    for found in _maps(state):
        size = found.kcov.size
        if found.map is None or size is None:
            continue
        for name, wanted in (("area", state.kernel.bytes_of(size)), ("mem", size * found.chunk)):
            area = state.vmalloc.get(getattr(found.map, name))
            if area is None or page_align(area.size) == page_align(wanted):
                continue
            message = (
                f"has {area.size} bytes of {name}, but an object of {size} words needs {wanted}"
            )
            if page_align(area.size) < page_align(wanted):
                message += ": the kernel writes behind its end"
            shown = {"size": size, name: Hex(area.start), "bytes": area.size, "wanted": wanted}
            yield found.violation(message, values(**shown))


@_rule(
    "M3",
    "a map's entries lie in its memory, each at the start of a piece of it",
    guaranteed_by="kcov_map_add()",
    consequence="Looking up a PC reads memory that is no entry: the PC is recorded again, or "
    "never.",
    needs=Part.SERIES,
    detail="Maps of objects that were never in a unique mode are not read: they are large, and "
    "empty.",
)
def _check_entries(state: State) -> Violations:
    for found, kcov_map, entries in _read_maps(state):
        if entries.problem and not entries.is_absent:
            yield found.violation(
                f"is broken after {len(entries.entries)} entries: {entries.problem}",
                values(
                    **{found.member: Hex(kcov_map.address)},
                    mem=Hex(kcov_map.mem),
                    chunk=found.chunk,
                ),
            )


@_rule(
    "M4",
    "every piece of its memory that a map's pool gave out is an entry of the map",
    guaranteed_by="kcov_map_add()",
    consequence="The PC of the lost piece is recorded again, and the memory is used up early.",
    needs=Part.SERIES | Part.TASKS | Part.CURRENT,
    detail="The pool gives out the first free piece. A task that is recording may have one that is "
    "not in the map yet.",
)
def _check_pool(state: State) -> Violations:
    for found, kcov_map, entries in _read_maps(state):
        if entries.problem is not None or not entries.entries:
            continue
        places = sorted((entry.address - kcov_map.mem) // found.chunk for entry in entries.entries)
        # No piece is given back. A task that records may have one that is not linked yet.
        users = {session.task for session in state.sessions_of.get(found.kcov.address, ())}
        spare = sum(task in state.running for task in users)
        if places[-1] + 1 > len(places) + spare:
            gap = next(number for number, place in enumerate(places) if place != number)
            yield found.violation(
                f"has {len(places)} entries in the first {places[-1] + 1} places of its "
                f"memory: that in place {gap} is lost",
                values(entries=len(places), places=places[-1] + 1, lost=gap),
            )


@_rule(
    "M5",
    "a buffer of a unique mode has no more records than its map has entries",
    severity=Severity.WARNING,
    guaranteed_by="kcov_map_add()",
    consequence="The buffer has records that the kernel did not write in this session.",
    needs=Part.SERIES,
    detail="It may have fewer: entries stay when user space resets the count, and when the buffer "
    "is full.",
)
def _check_count(state: State) -> Violations:
    for found, _, of_map in _read_maps(state):
        if found.buffer is None:
            continue
        entries, count = len(of_map.entries), found.buffer.count
        if count > entries:
            message = f"has {entries} entries, but its buffer has {count} records"
            yield found.violation(message, values(count=count, entries=entries), is_user=True)


@_rule(
    "M6",
    "the records of a unique mode are entries of its map, and recorded once",
    severity=Severity.WARNING,
    guaranteed_by="kcov_map_add()",
    consequence="Coverage is counted twice, or is not the kernel's.",
    needs=Part.SERIES,
    detail="Only objects in their first session are checked: in a later one records of another "
    "mode may be left.",
)
def _check_records(state: State) -> Violations:
    # A comparison's record has 64-bit words on 32-bit kernels as well; an entry's are the kernel's.
    mask = (1 << 8 * state.kernel.word_size) - 1
    for found, _, of_map in _read_maps(state):
        buffer = found.buffer
        if buffer is None:
            continue
        known: set[tuple[int, ...]] = {(entry.ent,) for entry in of_map.entries}
        if buffer.encoding.codec.has_operands:
            known = {(*entry.comparison, entry.ent) for entry in of_map.entries}
        records: list[tuple[int, ...]] = []
        missing = buffer.missing
        # The count is raised before the last record is written.
        for number in range(max(buffer.count - 1, 0)):
            if number not in missing:
                words = record_words(buffer.words, number, buffer.encoding)
                records.append(tuple(word & mask for word in words))
        unknown = [words for words in records if words not in known]
        twice = [words for words, times in Counter(records).items() if times > 1]
        for wrong, what in ((unknown, "is not in the map"), (twice, "is there twice")):
            if not wrong:
                continue
            message = (
                f"records each once: of the {buffer.count} in its buffer {wrong[0][-1]:#x} {what}"
            )
            if len(wrong) > 1:
                message += f", and {len(wrong) - 1} more"
            first = " ".join(map(hex, wrong[0]))
            shown = values(record=first, count=buffer.count, entries=len(of_map.entries))
            yield found.violation(message, shown, is_user=True)


def _request(argument: int, second: Mode | None = None) -> EnableRequest:
    return EnableRequest(
        argument,
        UNIQUE_MAPS,
        _SINCE,
        records_once=True,
        second=second,
        remark=(
            "what exec covered before the command's first instruction is not recorded again: "
            "the kernel does not empty its maps"
        ),
    )


# As the second buffer of a pair is read.
_EDGES: Final = Mode(UNIQ_EDGE, EDGE)

VARIANT: Final = Variant(
    "UNIQ_PC/UNIQ_EDGE/UNIQ_CMP (January 2025)",
    recognized_by="`KCOV_MODE_TRACE_UNIQ_…`, `map_edge` in `struct kcov`",
    also_shown="modes as sets of bits, both buffers in one answer, edges; hash maps by `check` (M1 "
    "- M6)",
    tested_on="kernel `unique-maps`",
    not_shown="the entries of the hash maps",
    features=frozenset({UNIQUE_MAPS}),
    marks=((KCOV, "map_edge"), *((MODE, name) for name in _MODES)),
    enumerators=("KCOV_MODE_REMOTE", *_MODES),
)


def _bug(title: str, *rules: str) -> KnownBug:
    return KnownBug(title, "not in the postings of January 2025", rules, ("E7",), needs=UNIQUE_MAPS)


SERIES: Final = Series(
    name="UNIQ_PC/UNIQ_EDGE/UNIQ_CMP",
    feature=UNIQUE_MAPS,
    variants=(VARIANT,),
    members=(
        *(SeriesMember(KCOV, (name,)) for name in MEMBERS),
        *(SeriesMember(MAP, (name,)) for name in ("buckets", *_PARTS)),
        *(SeriesMember(ENTRY, (name,)) for name in ("ent", "node")),
        SeriesMember(KCOV, ("prev_pc",), expected=False),
    ),
    enumerators=_MODES,
    modes=(
        Mode("TRACE_UNIQ_PC", PC, _request(2)),
        Mode(UNIQ_EDGE, EDGE, _request(4, _EDGES)),
        Mode("TRACE_UNIQ_PC_EDGE", PC, _request(6, _EDGES)),
        Mode("TRACE_UNIQ_CMP", CMP, _request(8)),
        # As the kernel's mode is named. Addresses are in the object's area, edges in a buffer of
        # their own.
        Mode(UNIQ_BOTH, PC),
    ),
    combined_modes=(frozenset({"KCOV_MODE_TRACE_UNIQ_PC", "KCOV_MODE_TRACE_UNIQ_EDGE"}),),
    # Edges are counted in another buffer, and look like addresses.
    layout_by_mode=True,
    second_buffer=SecondBuffer(
        mode=UNIQ_EDGE,
        noun="edges",
        first_mode="TRACE_UNIQ_PC",
        first_noun="addresses",
        alone=frozenset({UNIQ_EDGE}),
        both=frozenset({UNIQ_BOTH}),
        find=_find_edges,
        allocations=_find_allocations,
        allocation_count=4,
    ),
    object_fields=_EDGE_FIELDS,
    read_object=_read_edges,
    record_limit=RecordLimit(
        _is_used_up,
        "every entry of its hash map is used, and none is given back before the object is closed. "
        "Resetting the count is no help",
    ),
    allocators=("kcov_map_init",),
    read=_read,
    rules=(_check_whole, _check_room, _check_entries, _check_pool, _check_count, _check_records),
    rule_groups={"M": "Hash maps of UNIQ_PC, UNIQ_EDGE and UNIQ_CMP"},
    bugs=(
        _bug(
            "a second KCOV_INIT_TRACE replaces an object's maps before it is refused: the first "
            "ones leak, and the new buffers have another size than the object",
            "K4",
            "M2",
            "X2",
        ),
        _bug("KCOV_INIT_TRACE runs out of memory and leaves a half-built map", "K4", "M1"),
        _bug(
            "KCOV_REMOTE_ENABLE takes unique modes: sections of several tasks change one map "
            "without a lock",
            "M3",
            "M4",
        ),
    ),
)
