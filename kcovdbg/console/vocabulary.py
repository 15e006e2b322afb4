# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words that answers use, for readers who do not know KCOV's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VOCABULARY: Final[Mapping[str, str]] = {
    "object": "one struct kcov, made by opening /sys/kernel/debug/kcov",
    "buffer": "the memory that user space maps, the number of records first",
    "record": "one entry of a buffer: a PC, a comparison, or an entry or exit of a function",
    "PC": "what the kernel records: the return address of the compiler's callback, minus the KASLR offset",
    "address": "a PC plus the KASLR offset, as in the kernel's memory; source locations are those of the byte before",
    "coverage point": "one call of the sanitizer's callback in the kernel's text; code without one is never recorded",
    "trace": "a sequence of records in order, kept in memory or in a trace file",
    "area": "memory that the kernel collects a remote section into; the section's end copies it to the object's buffer",
    "handle": "a registered remote handle, such as usb:1 or common:0x42: names whose coverage a section is for",
    "section": "the span between kcov_remote_start() and kcov_remote_stop(): work for another task's handle",
    "session": "what collects into a task at one moment: local, remote section or softirq section",
    "role": "the kind of session: local (the task traces itself), remote-section, softirq-section or none",
    "owner": "the task that did KCOV_REMOTE_ENABLE; it has no coverage of its own in mode REMOTE",
    "saved state": "what a softirq section set aside of the session that it interrupted, per CPU or in the task",
    "full": "a full buffer keeps its first records and drops all later ones",
    "mode": "what a task records: TRACE_PC, TRACE_CMP, REMOTE, INIT (a buffer, not enabled) or DISABLED",
    "generation": "one layout of KCOV in mainline or stable kernels",
    "series": "a posted, unmerged patch series with its own modes or layout",
    "finding": "what check reports; a violation is a finding about an invariant that the kernel guarantees",
    "transient": "a finding that a held lock or a task inside KCOV may explain",
    "racing": "a finding that kept changing while a running kernel was read",
    "unknown": "not told by this kernel's types",
    "missing": "not in the dump",
    "unreadable": "a fault when it was read",
}
"""Each word and its meaning."""
