# SPDX-License-Identifier: LGPL-2.1-or-later
"""Invariants of a session, whether a task's fields or its saved state describe it."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.abi import mode as modes
from kcovdbg.abi.generations import Feature
from kcovdbg.model.kcov import Kcov, KcovFields
from kcovdbg.model.rule import Hex, Violation, session_violation, values
from kcovdbg.model.state import State
from kcovdbg.model.task import Role, Session


def with_objects(state: State, *, saved: bool) -> Iterator[tuple[Session, Kcov, KcovFields]]:
    """Yield the sessions whose object can be read.

    :param saved: saved sessions rather than those of tasks' own fields.
    """
    for session in state.sessions:
        kcov = state.objects.get(session.kcov or 0)
        if kcov is not None and kcov.fields is not None and session.is_saved == saved:
            yield session, kcov, kcov.fields


def check_local(state: State, session: Session, kcov: Kcov, fields: KcovFields) -> Iterator[Violation]:
    """Compare a local session with its object, of which it is a copy."""
    pairs = (
        ("mode", session.mode, kcov.mode),
        ("size", session.size, fields.size),
        ("area", _hex(session.area), _hex(fields.area)),
        ("sequence", session.sequence, fields.sequence),
    )
    for name, mine, its in pairs:
        if None not in (mine, its) and mine != its:
            yield session_violation(
                state,
                session,
                f"it traces itself with {name} {mine}, but {name} of kcov {fields.address:#x} is {its}",
                (("kcov", hex(fields.address)), (f"task {name}", str(mine)), (f"kcov {name}", str(its))),
            )


def _hex(address: int | None) -> Hex | None:
    return None if address is None else Hex(address)


def check_section(state: State, session: Session, kcov: Kcov, fields: KcovFields) -> Iterator[Violation]:
    """Compare a remote section with its object and with the memory that it collects into."""
    in_softirq = session.role is Role.SOFTIRQ_SECTION
    start, size = session.area or 0, session.size or 0
    shown = values(kcov=Hex(fields.address), area=Hex(start), size=session.size)
    if state.vmalloc is not None and session.area is not None:
        area = state.vmalloc.get(start)
        if area is None:
            message = f"its section collects into {start:#x}, which is not the start of a vmalloc area"
            yield session_violation(state, session, message, shown)
        elif state.kernel.page_align(area.size) < state.kernel.bytes_of(size):
            words = state.kernel.page_align(area.size) // state.kernel.buffer_word
            message = f"its section uses {size} words of area {start:#x}, which has {words}"
            yield session_violation(state, session, message, shown)
    if not in_softirq and not session.is_saved and state.kernel.has(Feature.MODE_REMOTE) and fields.task == session.task:
        yield session_violation(state, session, "it is in a section for an object that it has enabled itself", shown)
    if session.sequence is None or fields.sequence is None:
        return
    # Sequences wrap, so that only their difference gives the order.
    ahead = (session.sequence - fields.sequence + (1 << 31)) % (1 << 32) - (1 << 31)
    shown += values(task_sequence=session.sequence, kcov_sequence=fields.sequence)
    if ahead > 0:
        message = f"its section has sequence {session.sequence}, but the object only reached {fields.sequence}"
        yield session_violation(state, session, message, shown)
    if ahead != 0:
        # The object was disabled during the section, which is legal: the coverage will be discarded.
        return
    if not fields.remote:
        yield session_violation(state, session, "its section is for an object that takes no remote coverage", shown)
        return
    if not in_softirq and None not in (fields.remote_size, session.size) and session.size != fields.remote_size:
        message = f"its section's area has {session.size} words, but remote_size is {fields.remote_size}"
        yield session_violation(state, session, message, shown)
    if session.mode != kcov.mode:
        yield session_violation(
            state, session, f"its section is in mode {session.mode}, but the object is in {kcov.mode}", shown
        )


def check_owner_mark(state: State, session: Session, fields: KcovFields) -> Iterator[Violation]:
    """Check the mark of the owner of a KCOV_REMOTE_ENABLE, on kernels where it is in the task's own ``kcov``."""
    if state.kernel.has(Feature.OWNER_MEMBER):
        return
    wanted = modes.REMOTE if state.kernel.has(Feature.MODE_REMOTE) else modes.DISABLED
    if session.mode != wanted or session.size or session.area:
        area = Hex(session.area or 0)
        yield session_violation(
            state,
            session,
            f"it owns remote kcov {fields.address:#x}, but has mode {session.mode}, size {session.size} and area {area} "
            f"instead of {wanted}, 0 and 0",
            values(kcov=Hex(fields.address), mode=session.mode, size=session.size, area=area),
        )
