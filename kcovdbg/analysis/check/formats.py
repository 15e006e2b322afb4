# SPDX-License-Identifier: LGPL-2.1-or-later
"""F: what holds for KCOV_TRACE_PC_EXT (2026), whose records have a type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Session, name_kcov, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.analysis.check.sessions import make_violation
from kcovdbg.errors import KcovdbgError
from kcovdbg.walk.formats import read_format
from kcovdbg.walk.layout import KCOV, PERCPU, TASK


def _read(evidence: Evidence, type_name: str, address: int) -> int | None:
    try:
        return read_format(evidence.target, type_name, address)
    except KcovdbgError:
        return None


def _of_cpu(evidence: Evidence, cpu: int) -> int | None:
    try:
        return _read(evidence, PERCPU, evidence.target.per_cpu("kcov_percpu_data", cpu))
    except KcovdbgError:
        return None


def _of_session(evidence: Evidence, session: Session) -> int | None:
    """Return a session's flag, None where it can't be read."""
    task = session.task
    if not session.is_saved:
        return _read(evidence, TASK, task.fields.address)
    return None if task.saved is None or task.saved.cpu is None else _of_cpu(evidence, task.saved.cpu)


def check_modes(evidence: Evidence) -> Iterator[Violation]:
    """F1."""
    for item in evidence.objects.values():
        fields = item.fields
        if fields is None or not _read(evidence, KCOV, fields.address):
            continue
        mode = evidence.mode_of(fields)
        if not fields.mode or (evidence.is_enabled(fields) and mode != "TRACE_PC"):
            yield Violation(
                name_kcov(fields.address),
                f"its records have a type, and its mode is {mode}",
                values(mode=mode, kcov_ext_format=1),
                kcovs=(fields.address,),
            )
    for session in evidence.sessions:
        if session.is_tracing and session.mode != "TRACE_PC" and _of_session(evidence, session):
            yield make_violation(
                evidence, session, f"its records have a type, and its mode is {session.mode}", values(kcov_ext_format=1)
            )


def check_saved(evidence: Evidence) -> Iterator[Violation]:
    """F2."""
    for instance in evidence.census.per_cpu:
        if instance.saved.kcov == 0 and _of_cpu(evidence, instance.cpu):
            current = evidence.census.current.get(instance.cpu, 0)
            yield Violation(
                f"CPU {instance.cpu}",
                "its saved state has no object, and says that records have a type",
                values(saved_kcov_ext_format=1),
                tasks=(current,) if current else (),
            )


def check_copies(evidence: Evidence) -> Iterator[Violation]:
    """F3."""
    for session in evidence.sessions:
        kcov = evidence.kcov(session.kcov)
        if kcov is None or not session.is_tracing or session.sequence != kcov.sequence:
            # One of an earlier sequence began when the object was enabled for something else.
            continue
        mine, its = _of_session(evidence, session), _read(evidence, KCOV, kcov.address)
        if mine is None or its is None or mine == its:
            continue
        what = "have a type" if mine else "have no type"
        yield make_violation(
            evidence,
            session,
            f"its records {what}, those of kcov {kcov.address:#x} {'do' if its else 'do not'}",
            (("kcov", hex(kcov.address)), ("task kcov_ext_format", str(mine)), ("kcov kcov_ext_format", str(its))),
        )


_EXTENDED: Final = frozenset({Feature.EXT_RECORDS})
_ERAS: Final = "posted series of 2026 with KCOV_TRACE_PC_EXT"

RULES: Final = (
    Rule(
        "F1",
        "records have a type in mode TRACE_PC only",
        check_modes,
        "kcov_ioctl() (KCOV_ENABLE, KCOV_REMOTE_ENABLE), kcov_start()",
        eras=_ERAS,
        needs=_EXTENDED,
        detail="An object that is disabled keeps the flag, and so does a task whose section has ended.",
    ),
    Rule(
        "F2",
        "a CPU's saved state says that records have a type only while it holds a session",
        check_saved,
        "kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
        eras=_ERAS,
        needs=_EXTENDED,
    ),
    Rule(
        "F3",
        "what a session records has a type exactly when its object says so",
        check_copies,
        "kcov_start()",
        eras=_ERAS,
        needs=_EXTENDED,
        detail="A section of an earlier sequence has the format that its object had then.",
    ),
)
