# SPDX-License-Identifier: LGPL-2.1-or-later
"""All of KCOV's state at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kcovdbg.model.area import Area
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.remote import RemoteHandle
from kcovdbg.model.task import SavedState, Task


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one walk over everything found."""

    tasks: tuple[Task, ...] = ()
    objects: Mapping[int, Kcov] = field(default_factory=dict)
    remote: tuple[RemoteHandle, ...] = ()
    areas: tuple[Area, ...] = ()
    saved: tuple[SavedState, ...] = ()
    remarks: tuple[str, ...] = ()
    """What could not be read or looked at; each says what is missing from the answer."""
