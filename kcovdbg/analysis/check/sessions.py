# SPDX-License-Identifier: LGPL-2.1-or-later
"""What holds for a session, whether a task's fields hold it or it is saved: local, a section, or an owner's mark."""

from __future__ import annotations

from collections.abc import Iterator

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, Session, name_task, round_up, values
from kcovdbg.analysis.check.rule import Violation
from kcovdbg.model.kcov import KcovFields


def make_violation(evidence: Evidence, session: Session, message: str, shown: tuple[tuple[str, str], ...] = ()) -> Violation:
    """Report about a session."""
    fields = session.task.fields
    where = "its saved session: " if session.is_saved else ""
    del evidence
    return Violation(name_task(fields), where + message, shown, kcovs=(session.kcov,), tasks=(fields.address,))


def check_local(evidence: Evidence, session: Session, kcov: KcovFields) -> Iterator[Violation]:
    """Compare a local session with its object: all that it has is a copy."""
    pairs: list[tuple[str, object, object]] = [
        ("mode", session.mode, evidence.mode_of(kcov)),
        ("size", session.size, kcov.size),
        ("area", Hex(session.area), None if kcov.area is None else Hex(kcov.area)),
    ]
    if session.sequence is not None:
        pairs.append(("sequence", session.sequence, kcov.sequence))
    wrong = [(name, mine, its) for name, mine, its in pairs if its is not None and mine != its]
    for name, mine, its in wrong:
        yield make_violation(
            evidence,
            session,
            f"it traces itself with {name} {mine}, kcov {kcov.address:#x} says {its}",
            (("kcov", hex(kcov.address)), (f"task {name}", str(mine)), (f"kcov {name}", str(its))),
        )


def check_section(evidence: Evidence, session: Session, kcov: KcovFields) -> Iterator[Violation]:
    """Hold a remote section against its object and the memory that it collects into."""
    in_softirq = not session.is_saved and evidence.in_softirq(session.task)
    shown = values(kcov=Hex(kcov.address), area=Hex(session.area), size=session.size)
    if evidence.vmalloc is not None:
        area = evidence.vmalloc.get(session.area)
        if area is None:
            yield make_violation(
                evidence,
                session,
                f"its section collects into {session.area:#x}, which isn't the start of a vmalloc area",
                shown,
            )
        elif round_up(area.size) < evidence.bytes_of(session.size):
            yield make_violation(
                evidence,
                session,
                f"its section's area {session.area:#x} is taken for {session.size} words, it has {evidence.words(area)}",
                shown,
            )
    if (
        not in_softirq
        and not session.is_saved
        and evidence.has(Feature.MODE_REMOTE)
        and kcov.task == session.task.fields.address
    ):
        yield make_violation(evidence, session, "it is in a section for the object that it has enabled itself", shown)
    if session.sequence is None or kcov.sequence is None:
        return
    # Numbers that wrap are compared by their difference.
    ahead = (session.sequence - kcov.sequence + (1 << 31)) % (1 << 32) - (1 << 31)
    shown += values(task_sequence=session.sequence, kcov_sequence=kcov.sequence)
    if ahead > 0:
        yield make_violation(
            evidence, session, f"its section is of sequence {session.sequence}, the object only came to {kcov.sequence}", shown
        )
    if ahead != 0:
        # It outlived a disable: legal, its coverage will be discarded.
        return
    if not kcov.remote:
        yield make_violation(evidence, session, "its section is for an object that takes no remote coverage", shown)
        return
    if not in_softirq and kcov.remote_size is not None and session.size != kcov.remote_size:
        yield make_violation(
            evidence, session, f"its section's area has {session.size} words, remote_size is {kcov.remote_size}", shown
        )
    if session.mode != evidence.mode_of(kcov):
        yield make_violation(
            evidence, session, f"its section is in mode {session.mode}, the object in {evidence.mode_of(kcov)}", shown
        )


def check_owner_mark(evidence: Evidence, session: Session, kcov: KcovFields) -> Iterator[Violation]:
    """Look at how the owner of a KCOV_REMOTE_ENABLE is marked, in kernels where it is by its own ``kcov``."""
    wanted = "REMOTE" if evidence.has(Feature.MODE_REMOTE) else "DISABLED"
    if evidence.has(Feature.OWNER_MEMBER):
        return
    if session.mode != wanted or session.size or session.area:
        yield make_violation(
            evidence,
            session,
            f"it owns remote kcov {kcov.address:#x}, and has mode {session.mode}, size {session.size} and area "
            f"{session.area:#x} instead of {wanted}, 0 and 0",
            values(kcov=Hex(kcov.address), mode=session.mode, size=session.size, area=Hex(session.area)),
        )
