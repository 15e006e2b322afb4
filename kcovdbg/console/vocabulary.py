# SPDX-License-Identifier: LGPL-2.1-or-later
"""The glossary: the words that answers use, for readers who do not know KCOV."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VOCABULARY: Final[Mapping[str, str]] = {
    "object": "one struct kcov: each open() of /sys/kernel/debug/kcov makes one, with at most one buffer",
    "buffer": "the memory that the kernel records into and user space maps; its first word is the number of records",
    "record": "one entry of a buffer: a PC, a comparison, or an entry or exit of a function",
    "PC": "what the kernel records: the return address of the compiler's callback, minus the KASLR offset",
    "address": "a PC plus the KASLR offset, as in the kernel's memory; source locations are those of the byte before",
    "coverage point": "one call of the sanitizer's callback in the kernel's text; code without one is never recorded",
    "trace": "a sequence of records in order, kept in memory or in a trace file",
    "area": "memory that the kernel records a remote section into; the section's end copies it to the owner's buffer",
    "handle": "a name such as usb:1 that background work announces, to be recorded for the task that registered it",
    "section": "the code between kcov_remote_start() and kcov_remote_stop(): background work that is recorded for another task",
    "session": "what is recorded in a task at one moment: the task itself (local), a remote section or a softirq section",
    "role": "the kind of session: local (the task traces itself), remote-section, softirq-section or none",
    "owner": "the task that registered handles by KCOV_REMOTE_ENABLE; it is not traced itself in mode REMOTE",
    "saved state": "what a softirq section set aside of the session that it interrupted, per CPU or in the task",
    "full": "a full buffer keeps its first records and drops all later ones",
    "mode": "what a task records: TRACE_PC, TRACE_CMP, REMOTE, INIT (a buffer, not enabled) or DISABLED",
    "generation": "one layout of KCOV in mainline or stable kernels",
    "series": "a posted, unmerged patch series with its own modes or layout",
    "finding": "what check reports; a violation is a finding about an invariant that the kernel guarantees",
    "transient": "a finding that a held lock or a task inside KCOV may explain",
    "racing": "a finding that kept changing while a running kernel was read",
    "unknown": "this kernel's types do not say",
    "missing": "not in the dump",
    "unreadable": "a fault when it was read",
}
"""Each word and its meaning."""
