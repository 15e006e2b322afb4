# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of KCOV's generations, and the names of what tells them apart.

A generation is recognised by members (:mod:`kcovdbg.walk.layout`), never by a release number: stable kernels carry newer
layouts than newer releases.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Feature(str, Enum):
    """A fact about a kernel's KCOV that code asks for."""

    WORDS_32 = "32-bit-words"
    """The buffer holds 32-bit words, the upper half of a PC is implied (2016 posting)."""
    VMA_REFERENCES = "vma-references"
    """Each mapping holds a reference of its own (2016 posting)."""
    COMPARISONS = "comparisons"
    """The TRACE_CMP mode exists (ded97d2c2b2c, v4.15); whether it was compiled in is CONFIG_KCOV_ENABLE_COMPARISONS."""
    CTXSW_FLAG = "ctxsw-flag"
    """Bit 30 (of the 2021 series: 31) of a task's mode is a flag (0ed557aa8139, v4.18)."""
    REMOTE = "remote"
    """Remote handles and areas (eec028c9386e, v5.5)."""
    SOFTIRQ = "softirq"
    """Remote sections in softirqs (5ff3b30ab57d, v5.8)."""
    SAVED_PER_CPU = "saved-per-cpu"
    SAVED_IN_TASK = "saved-in-task"
    IRQ_AREA_PER_CPU = "irq-area-per-cpu"
    """Each CPU has one area for softirq sections; otherwise they come from a list."""
    AREA_LISTS = "area-lists"
    """Two lists of areas: 0 for tasks, 1 for softirqs."""
    MODE_REMOTE = "mode-remote"
    """The owner of a KCOV_REMOTE_ENABLE has a mode of its own (01c8f9806bde, v6.10)."""
    OWNER_MEMBER = "kcov-remote-member"
    """The owner has a pointer of its own, so that a local and a remote session go at once (1d9c9493692e, v7.2)."""
    STATE_STRUCT = "kcov-state"
    """Size, area and sequence live in struct kcov_state (2025 deduplication series)."""
    UNIQUE_BITMAP = "unique-bitmap"
    """KCOV_UNIQUE_ENABLE: a bitmap and a trace share the buffer (2025 deduplication series)."""
    UNIQUE_ENABLE_V1 = "unique-enable-v1"
    """The same with another request's number (its first version, April 2025)."""
    UNIQUE_MAPS = "unique-maps"
    """UNIQ_PC, UNIQ_EDGE and UNIQ_CMP: hash maps, and a second mapping for edges (January 2025 series)."""
    TEXT_BITMAP = "text-bitmap"
    """KCOV_INIT_UNIQUE: the whole buffer is a bitmap of the kernel's text (2020-2021 series)."""
    EXT_RECORDS = "ext-records"
    """Records with entry, exit and normal types (2026 series)."""
    PC_RANGE = "pc-range"
    """KCOV_PC_RANGE filters by address (2021 series)."""
    DATAFLOW = "dataflow"
    """A second device, kcov_dataflow, beside this one (2026 series)."""
    WRITING = "writing"
    """A flag keeps interrupts from recording while a task does (2022 series)."""
    PAUSED_FLAG = "paused-flag"
    """Bit 29 of a task's mode is a flag (2026 series, under review)."""


class Variant(str, Enum):
    """A posted series in a kernel, as ``info`` names it. None has been merged (November 2026)."""

    UNIQUE_MAPS = "UNIQ_PC/UNIQ_EDGE/UNIQ_CMP (January 2025)"
    INIT_UNIQUE = "KCOV_INIT_UNIQUE (2021)"
    UNIQUE_ENABLE_1 = "KCOV_UNIQUE_ENABLE v1 (2025)"
    UNIQUE_ENABLE = "KCOV_UNIQUE_ENABLE v2-v4 (2025)"
    STATE_ONLY = "struct kcov_state without KCOV_UNIQUE_ENABLE (2025)"
    EXT_RECORDS = "KCOV_TRACE_PC_EXT v1 (2026)"
    PC_RANGE = "KCOV_PC_RANGE (2021)"
    WRITING = "kcov_writing (2022)"
    # Their own structures and device aren't shown, and info says so.
    DATAFLOW_FILE = "kcov_dataflow in its own file (2026; its own buffers aren't shown)"
    DATAFLOW = "kcov_dataflow in kcov.c (2026; its own buffers aren't shown)"


class Era(NamedTuple):
    """One row of the table."""

    name: str
    kernels: str
    summary: str


ERAS: Final = (
    Era("E0", "posting v3 of January 2016", "32-bit words, references held by mappings"),
    Era("E1", "v4.6 - v4.14", "one trace mode"),
    Era("E2", "v4.15 - v5.4", "comparisons"),
    Era("E3", "v5.5 - v5.7", "remote handles, sections of tasks"),
    Era("E4", "v5.8 - v5.15", "softirq sections, saved state and area per CPU"),
    Era("E5-E6", "v5.16 - v6.9", "the same under a local lock (which of the two can't be seen in the types)"),
    Era("E7", "v6.10 - v7.1, and stable kernels with the back-port", "KCOV_MODE_REMOTE"),
    Era("E8", "v7.2", "kcov_remote in the task: a local and a remote session at once"),
    Era("E9a", "stable kernels since August 2026 (6.1.185, 6.12.106)", "saved state in the task, two lists of areas"),
    Era("E9b", "mainline after August 2026", "saved state in the task, two lists of areas, kcov_remote"),
)


def find_era(name: str) -> Era | None:
    """Return the row with this name, None where there is none."""
    return next((era for era in ERAS if era.name == name), None)
