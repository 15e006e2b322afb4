# SPDX-License-Identifier: LGPL-2.1-or-later
"""Events in KCOV's state that one can wait for: a violated rule, a buffer that becomes full, a section."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from kcovdbg.analysis.check.runner import check
from kcovdbg.model.object_names import name_kcov, name_task
from kcovdbg.model.state import Part, StateSource


class AwaitedEvent(str, Enum):
    """What is waited for."""

    VIOLATION = "violation"
    FULL = "full"
    SECTION = "section"

    @property
    def is_short(self) -> bool:
        """Whether it may pass within microseconds, so that the kernel has to stand still to be looked at."""
        return self is AwaitedEvent.SECTION


def find_events(source: StateSource, event: AwaitedEvent) -> Mapping[str, str]:
    """Return the events that a look finds: what each is about, and the event in words.

    :param source: the look.
    """
    if event is AwaitedEvent.VIOLATION:
        found = check(source).findings
        return {
            f"{finding.rule} {finding.object}": f"{finding.rule}: {finding.object}: {finding.message}"
            for finding in found
            if finding.severity.is_violation
        }
    if event is AwaitedEvent.FULL:
        objects = source.read(Part.OBJECTS).objects
        return {
            name_kcov(address): f"the buffer of {name_kcov(address)} is full: {kcov.count} records"
            for address, kcov in objects.items()
            if kcov.full
        }
    state = source.read(Part.TASKS)
    return {
        name_task(task.fields): f"{name_task(task.fields)} is in a {session.role.value.replace('-', ' ')}"
        for task in state.tasks
        for session in (task.session, task.interrupted)
        if session is not None and session.is_section and session.role is not None
    }


def find_new(events: Mapping[str, str], known: Collection[str]) -> str | None:
    """Return the first event, in words, that is not known, None where there is none."""
    return next((text for name, text in events.items() if name not in known), None)
