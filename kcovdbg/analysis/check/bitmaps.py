# SPDX-License-Identifier: LGPL-2.1-or-later
"""U: what holds for KCOV_UNIQUE_ENABLE (2025), whose buffers have a bitmap before the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, Session, name_kcov, name_task, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.analysis.check.sessions import make_violation
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import KcovFields
from kcovdbg.walk.block import read_partly
from kcovdbg.walk.layout import KCOV, PERCPU, TASK
from kcovdbg.walk.states import KcovState, read_guards, read_highest_guard, read_state

_UNIQUE_MODES: Final = ("UNIQUE_PC", "TRACE_UNIQUE_PC")
_BY_USER: Final = "user space can write its buffer"


class _Found(NamedTuple):
    """A state, and what it is of."""

    about: str
    mode: str
    state: KcovState
    kcovs: tuple[int, ...]
    tasks: tuple[int, ...]

    def violation(self, message: str) -> Violation:
        shown = values(
            mode=self.mode,
            **{
                name: Hex(value or 0) if name in ("area", "trace", "bitmap") else value
                for name, value in self.state._asdict().items()
            },
        )
        return Violation(self.about, message, shown, kcovs=self.kcovs, tasks=self.tasks)


def _state_of_session(evidence: Evidence, session: Session) -> KcovState | None:
    """Read where a session records to, None where that can't be read."""
    target, task = evidence.target, session.task
    try:
        if not session.is_saved:
            return read_state(target, TASK, task.fields.address)
        cpu = None if task.saved is None else task.saved.cpu
        return None if cpu is None else read_state(target, PERCPU, target.per_cpu("kcov_percpu_data", cpu))
    except KcovdbgError:
        return None


def _state_of_object(evidence: Evidence, kcov: KcovFields) -> KcovState | None:
    try:
        return read_state(evidence.target, KCOV, kcov.address)
    except KcovdbgError:
        return None


def _objects(evidence: Evidence) -> Iterator[tuple[KcovFields, KcovState]]:
    for item in evidence.objects.values():
        if item.fields is not None and (state := _state_of_object(evidence, item.fields)) is not None:
            yield item.fields, state


def _states(evidence: Evidence) -> Iterator[_Found]:
    """Yield the states of all objects and of all that records."""
    for kcov, state in _objects(evidence):
        tasks = (kcov.task,) if kcov.task else ()
        yield _Found(name_kcov(kcov.address), evidence.mode_of(kcov), state, (kcov.address,), tasks)
    for session in evidence.sessions:
        read = _state_of_session(evidence, session) if session.is_tracing else None
        if read is not None:
            fields = session.task.fields
            about = name_task(fields) + (": its saved session" if session.is_saved else "")
            yield _Found(about, session.mode, read, (session.kcov,), (fields.address,))


def check_bitmap(evidence: Evidence) -> Iterator[Violation]:
    """U1."""
    for found in _states(evidence):
        bitmap, bits, area = found.state.bitmap, found.state.bitmap_size, found.state.area
        if found.mode in _UNIQUE_MODES and bitmap == 0:
            yield found.violation("it records each address once, and has no bitmap to know them by")
        elif found.mode not in _UNIQUE_MODES and (bitmap or bits):
            yield found.violation(f"it has a bitmap in mode {found.mode}")
        elif bitmap and area is not None and bitmap != area:
            yield found.violation(f"its bitmap is at {bitmap:#x}, its buffer starts at {area:#x}")


def check_split(evidence: Evidence) -> Iterator[Violation]:
    """U2."""
    word = 8 * evidence.target.word_size
    for found in _states(evidence):
        size, area, trace_size, trace, bits, _ = found.state
        if size is None or area is None or trace_size is None or trace is None or bits is None:
            continue
        words = bits // word
        if bits % word:
            yield found.violation(f"its bitmap has {bits} bits, which is no whole number of words")
        elif words + trace_size != size:
            yield found.violation(f"its bitmap takes {words} words and its trace {trace_size}, the buffer has {size}")
        elif trace != area + evidence.bytes_of(words):
            yield found.violation(f"its trace is at {trace:#x}, behind its bitmap is {area + evidence.bytes_of(words):#x}")


def check_copies(evidence: Evidence) -> Iterator[Violation]:
    """U3."""
    for session in evidence.sessions:
        kcov = evidence.kcov(session.kcov)
        if kcov is None or not evidence.is_local(session):
            continue
        mine, its = _state_of_session(evidence, session), _state_of_object(evidence, kcov)
        if mine is None or its is None:
            continue
        for name in ("trace", "trace_size", "bitmap", "bitmap_size"):
            one, other = getattr(mine, name), getattr(its, name)
            if one is not None and other is not None and one != other:
                kind = int if name.endswith("size") else Hex
                yield make_violation(
                    evidence,
                    session,
                    f"it traces itself with {name} {kind(one)}, kcov {kcov.address:#x} says {kind(other)}",
                    (("kcov", hex(kcov.address)), (f"task {name}", str(kind(one))), (f"kcov {name}", str(kind(other)))),
                )
    for task in evidence.tasks:
        if task.fields.kcov != 0:
            continue
        try:
            state = read_state(evidence.target, TASK, task.fields.address)
        except KcovdbgError:
            continue
        left = [name for name in ("trace", "trace_size", "bitmap", "bitmap_size") if getattr(state, name)]
        if left:
            yield Violation(
                name_task(task.fields),
                f"it has no kcov, and yet {' and '.join(left)}",
                values(**{name: Hex(getattr(state, name)) for name in left}),
                tasks=(task.fields.address,),
            )


class _Bitmap(NamedTuple):
    """A bitmap as an integer, and whose it is."""

    kcov: KcovFields
    state: KcovState
    bits: int

    @property
    def marked(self) -> int:
        """How many edges it marks."""
        return self.bits.bit_count()


def _bitmaps(evidence: Evidence) -> Iterator[_Bitmap]:
    """Read the bitmaps of all objects that have one; what isn't there is left out."""
    for kcov, state in _objects(evidence):
        if not state.bitmap or not state.bitmap_size or not kcov.size or state.bitmap_size > 8 * evidence.bytes_of(kcov.size):
            continue
        data, missing = read_partly(evidence.target, state.bitmap, state.bitmap_size // 8, 1)
        if missing:
            continue
        if evidence.target.big_endian:
            # Bits are numbered within words.
            word = evidence.target.word_size
            data = b"".join(data[at : at + word][::-1] for at in range(0, len(data), word))
        yield _Bitmap(kcov, state, int.from_bytes(data, "little"))


def check_marks(evidence: Evidence) -> Iterator[Violation]:
    """U4."""
    try:
        highest: int | None = read_highest_guard(evidence.target)
    except KcovdbgError:
        highest = None
    for found in _bitmaps(evidence):
        if found.bits & 1:
            message = "its bitmap marks edge 0, and numbers begin with 1"
        elif highest is not None and found.bits.bit_length() - 1 > highest:
            message = f"its bitmap marks edge {found.bits.bit_length() - 1}, {highest} have a number"
        else:
            continue
        yield Violation(
            name_kcov(found.kcov.address),
            message,
            values(marked=found.marked, kcov_guard_max_index="unknown" if highest is None else highest),
            Certainty.UNSURE,
            _BY_USER,
            kcovs=(found.kcov.address,),
        )


def check_recorded(evidence: Evidence) -> Iterator[Violation]:
    """U5."""
    for found in _bitmaps(evidence):
        item = evidence.objects[found.kcov.address]
        if item.count is None or item.full or item.count >= found.marked:
            continue
        yield Violation(
            name_kcov(found.kcov.address),
            f"its bitmap marks {found.marked} edges, and {item.count} records were kept: the others aren't recorded again",
            values(marked=found.marked, count=item.count),
            kcovs=(found.kcov.address,),
        )


def check_guards(evidence: Evidence) -> Iterator[Violation]:
    """U6."""
    try:
        guards, highest = read_guards(evidence.target), read_highest_guard(evidence.target)
    except KcovdbgError:
        return
    numbered = [number for number in guards or () if number]
    beyond = [number for number in numbered if number > highest]
    if beyond:
        yield Violation(
            "guards",
            f"{len(beyond)} edges have numbers beyond {highest}, the first {beyond[0]}",
            values(kcov_guard_max_index=highest, number=beyond[0]),
        )
    shared = len(numbered) - len(set(numbered))
    if shared:
        ((number, times),) = Counter(numbered).most_common(1)
        yield Violation(
            "guards",
            f"{shared} edges share their number with another one: a bitmap can't tell them apart ({times} have {number})",
            values(number=number, numbered=len(numbered)),
        )


_UNIQUE: Final = frozenset({Feature.UNIQUE_BITMAP})
_ERAS: Final = "posted series of 2025 with KCOV_UNIQUE_ENABLE"

RULES: Final = (
    Rule(
        "U1",
        "what records each address once has a bitmap, at its buffer's start, and nothing else has one",
        check_bitmap,
        "kcov_ioctl() (KCOV_UNIQUE_ENABLE), kcov_reset()",
        eras=_ERAS,
        needs=_UNIQUE,
    ),
    Rule(
        "U2",
        "bitmap and trace share the whole buffer: the trace begins where the bitmap ends",
        check_split,
        "kcov_ioctl() (KCOV_UNIQUE_ENABLE), kcov_reset()",
        eras=_ERAS,
        needs=_UNIQUE,
        detail="Without a bitmap the trace is the buffer.",
    ),
    Rule(
        "U3",
        "a task that traces itself has its object's trace and bitmap, and one without an object has neither",
        check_copies,
        "kcov_start(), kcov_stop()",
        eras=_ERAS,
        needs=_UNIQUE,
    ),
    Rule(
        "U4",
        "a bitmap marks edges that have a number: from 1 to kcov_guard_max_index",
        check_marks,
        "__sanitizer_cov_trace_pc_guard()",
        Severity.WARNING,
        eras=_ERAS,
        needs=_UNIQUE,
    ),
    Rule(
        "U5",
        "for each edge that a bitmap marks there is a record",
        check_recorded,
        "__sanitizer_cov_trace_pc_guard()",
        Severity.ADVICE,
        eras=_ERAS,
        needs=_UNIQUE,
        detail=(
            "There are more records than marks where numbers are beyond the bitmap. There are fewer where user space reset the "
            "count and not the bitmap: legal, and those edges never show again. KCOV_RESET_TRACE resets both."
        ),
    ),
    Rule(
        "U6",
        "each edge's number is its own, and at most kcov_guard_max_index",
        check_guards,
        "__sanitizer_cov_trace_pc_guard()",
        eras=_ERAS,
        needs=_UNIQUE,
        detail="0 is an edge that wasn't met yet. Only compilers that keep guards in a section of their own are looked at.",
    ),
)
