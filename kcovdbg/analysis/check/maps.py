# SPDX-License-Identifier: LGPL-2.1-or-later
"""M: what holds for the hash maps of the January 2025 series, which records each address, edge and comparison once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.abi.mode import UNIQ_BOTH
from kcovdbg.abi.record import RecordFormat
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_kcov, round_up, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import KcovFields
from kcovdbg.walk.maps import MEMBERS, KcovMap, MapEntries, MapEntry, read_map

_BY_USER: Final = "user space can write its buffer"
_UNIQUE: Final = "TRACE_UNIQ_"


class _Found(NamedTuple):
    """A map and whose it is."""

    kcov: KcovFields
    member: str
    map: KcovMap | None


def _maps(evidence: Evidence) -> Iterator[_Found]:
    """Yield both maps of each object that was initialised; those that can't be read are left out."""
    for item in evidence.objects.values():
        fields = item.fields
        if fields is None or not fields.mode:
            continue
        for member in MEMBERS:
            try:
                yield _Found(fields, member, read_map(evidence.target, fields.address, member))
            except KcovdbgError:
                continue


def _violation(found: _Found, message: str, shown: tuple[tuple[str, str], ...], *, user: bool = False) -> Violation:
    return Violation(
        name_kcov(found.kcov.address),
        f"its {found.member} {message}",
        shown,
        Certainty.UNSURE if user else Certainty.CERTAIN,
        _BY_USER if user else None,
        kcovs=(found.kcov.address,),
        tasks=(found.kcov.task,) if found.kcov.task else (),
        severity=Severity.WARNING if user else None,
    )


def check_whole(evidence: Evidence) -> Iterator[Violation]:
    """M1."""
    for found in _maps(evidence):
        if found.map is None:
            yield _violation(found, "is missing", values(**{found.member: Hex(0)}))
            continue
        shown = values(pool=Hex(found.map.pool), mem=Hex(found.map.mem), area=Hex(found.map.area))
        lacking = [name for name in ("pool", "mem", "area") if not getattr(found.map, name)]
        if lacking:
            yield _violation(found, f"was only half made: it has no {' and no '.join(lacking)}", shown)
        elif found.member == "map" and found.kcov.area is not None and found.map.area != found.kcov.area:
            yield _violation(
                found,
                f"has the buffer {found.map.area:#x}, the object {found.kcov.area:#x}",
                (*shown, ("kcov.area", hex(found.kcov.area))),
            )


def check_room(evidence: Evidence) -> Iterator[Violation]:
    """M2."""
    for found in _maps(evidence):
        if found.map is None or found.kcov.size is None or evidence.vmalloc is None:
            continue
        sizes = (("area", evidence.bytes_of(found.kcov.size)), ("mem", found.kcov.size * found.map.chunk))
        for name, wanted in sizes:
            area = evidence.vmalloc.get(getattr(found.map, name))
            if area is not None and round_up(area.size) != round_up(wanted):
                less = round_up(area.size) < round_up(wanted)
                yield _violation(
                    found,
                    f"has {area.size} bytes of {name}, an object of {found.kcov.size} words takes {wanted}"
                    + (": the kernel writes behind its end" if less else ""),
                    values(size=found.kcov.size, **{name: Hex(area.start)}, bytes=area.size, wanted=wanted),
                )


def _is_used(evidence: Evidence, kcov: KcovFields) -> bool:
    """Tell whether a map may have entries: a unique mode is on, or a session ended whose mode nobody remembers."""
    return evidence.mode_of(kcov).startswith(_UNIQUE) or (not evidence.is_enabled(kcov) and kcov.sequence != 1)


class _Used(NamedTuple):
    """A map with what is in it."""

    found: _Found
    map: KcovMap
    entries: MapEntries


def _entries(evidence: Evidence) -> Iterator[_Used]:
    for found in _maps(evidence):
        if found.map is None or not found.kcov.size or not _is_used(evidence, found.kcov):
            continue
        entries = evidence.map_entries(found.map, found.kcov.size)
        if entries is not None:
            yield _Used(found, found.map, entries)


def check_entries(evidence: Evidence) -> Iterator[Violation]:
    """M3."""
    for found, kcov_map, entries in _entries(evidence):
        if entries.problem is not None and not entries.is_absent:
            yield _violation(
                found,
                f"isn't a map of {len(entries.entries)} entries and more: {entries.problem}",
                values(**{found.member: Hex(kcov_map.address)}, mem=Hex(kcov_map.mem), chunk=kcov_map.chunk),
            )


def check_pool(evidence: Evidence) -> Iterator[Violation]:
    """M4."""
    for found, kcov_map, entries in _entries(evidence):
        if entries.problem is not None or not entries.entries:
            continue
        places = sorted((entry.address - kcov_map.mem) // kcov_map.chunk for entry in entries.entries)
        # The pool gives out the first free one, and none comes back. A task that records may have one that isn't linked yet.
        spare = sum(task in evidence.running for task in evidence.users_of.get(found.kcov.address, ()))
        if places[-1] + 1 > len(places) + spare:
            gap = next(number for number, place in enumerate(places) if place != number)
            yield _violation(
                found,
                f"has {len(places)} entries in the first {places[-1] + 1} places of its memory: that in place {gap} is lost",
                values(entries=len(places), places=places[-1] + 1, lost=gap),
            )


def _records(evidence: Evidence) -> Iterator[tuple[_Found, Sequence[MapEntry], Buffer]]:
    """Yield each map whose buffer holds nothing but what went through it: the object is in its first session, a unique one."""
    for found, kcov_map, entries in _entries(evidence):
        mode, kcov = evidence.mode_of(found.kcov), found.kcov
        edges = found.member == "map_edge"
        used = "TRACE_UNIQ_EDGE" in mode if edges else mode != "TRACE_UNIQ_EDGE"
        if entries.problem is not None or kcov.sequence != 1 or not mode.startswith(_UNIQUE) or not used or not kcov.size:
            continue
        name = f"area:{kcov_map.area:#x}" if edges and mode == UNIQ_BOTH else f"kcov:{kcov.address:#x}"
        buffer = evidence.buffer(name, kcov.size)
        if buffer is not None and buffer.address == kcov_map.area:
            yield found, entries.entries, buffer


def check_count(evidence: Evidence) -> Iterator[Violation]:
    """M5."""
    for found, entries, buffer in _records(evidence):
        if buffer.count > len(entries):
            yield _violation(
                found,
                f"has {len(entries)} entries, and its buffer {buffer.count} records",
                values(count=buffer.count, entries=len(entries)),
                user=True,
            )


def check_records(evidence: Evidence) -> Iterator[Violation]:
    """M6."""
    for found, entries, buffer in _records(evidence):
        missing = {number for gap in buffer.gaps for number in range(gap.first, gap.first + gap.length)}
        is_cmp = buffer.encoding.format is RecordFormat.UNIQ_CMP
        # A comparison's record has 64-bit words on 32-bit kernels, too; an entry's are the kernel's.
        mask = (1 << 8 * evidence.target.word_size) - 1
        known = {(*entry.comparison, entry.ent) if is_cmp else (entry.ent,) for entry in entries}
        width = record.CMP_WORDS if is_cmp else 1
        # The count is raised before the last one is written.
        records = [
            tuple(word & mask for word in buffer.words[width * number : width * (number + 1)])
            for number in range(max(buffer.count - 1, 0))
            if number not in missing
        ]
        strange = [words for words in records if words not in known]
        twice = [words for words, times in Counter(records).items() if times > 1]
        for wrong, what in ((strange, "isn't in the map"), (twice, "is there twice")):
            if wrong:
                yield _violation(
                    found,
                    f"records each once: of its buffer's {buffer.count} {wrong[0][-1]:#x} {what}"
                    + (f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""),
                    values(record=" ".join(map(hex, wrong[0])), count=buffer.count, entries=len(entries)),
                    user=True,
                )


_MAPS: Final = frozenset({Feature.UNIQUE_MAPS})
_ERAS: Final = "posted series of January 2025"

RULES: Final = (
    Rule(
        "M1",
        "an initialised object has both maps, with pool, memory and buffer, and the first one's buffer is the object's own",
        check_whole,
        "kcov_map_init()",
        eras=_ERAS,
        needs=_MAPS,
    ),
    Rule(
        "M2",
        "a map's buffer and its memory have the room that the object's size takes",
        check_room,
        "kcov_map_init()",
        eras=_ERAS,
        needs=_MAPS,
    ),
    Rule(
        "M3",
        "a map's entries lie in its memory, each at the start of a piece of it",
        check_entries,
        "kcov_map_add()",
        eras=_ERAS,
        needs=_MAPS,
        detail="Maps of objects that never were in a unique mode aren't read: they are large, and empty.",
    ),
    Rule(
        "M4",
        "every piece of its memory that a map's pool gave out is an entry of the map",
        check_pool,
        "kcov_map_add()",
        eras=_ERAS,
        needs=_MAPS,
        detail="The pool gives out the first free piece. A task that is recording may have one that isn't in the map yet.",
    ),
    Rule(
        "M5",
        "a buffer of a unique mode has no more records than its map has entries",
        check_count,
        "kcov_map_add()",
        Severity.WARNING,
        eras=_ERAS,
        needs=_MAPS,
        detail="It may have less: entries stay when user space resets the count, and when the buffer is full.",
    ),
    Rule(
        "M6",
        "what a unique mode records is an entry of its map, and recorded once",
        check_records,
        "kcov_map_add()",
        Severity.WARNING,
        eras=_ERAS,
        needs=_MAPS,
        detail="Said of objects in their first session only: in a later one records of another mode may be left.",
    ),
)
