# SPDX-License-Identifier: LGPL-2.1-or-later
"""R: what holds for ``kcov_remote_map``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_kcov, name_some, name_task, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.model.finding import Certainty, Severity

# Of freed and of red-zoned slab objects: include/linux/poison.h.
_POISON: Final = (0x6B, 0xA5, 0x5A, 0xBB, 0xCC)


def _name(handle: int) -> str:
    return f"handle {handles.decode_handle(handle)}"


def check_chain(evidence: Evidence) -> Iterator[Violation]:
    """R1."""
    for link in evidence.hash_links:
        if link.problem is not None:
            sure = Certainty.UNSURE if link.is_missing else Certainty.CERTAIN
            yield Violation(
                link.list,
                f"its chain is broken: {link.problem}",
                values(link=Hex(link.address)),
                sure,
                "the memory may be missing from the target" if link.is_missing else None,
                remote_lock=True,
            )
        elif link.back is not None and link.back != link.expected:
            yield Violation(
                link.list,
                f"the entry at {link.address:#x} leads back to {link.back:#x}, it hangs on {link.expected:#x}",
                values(entry=Hex(link.address), pprev=Hex(link.back), expected=Hex(link.expected)),
                remote_lock=True,
            )
    for kcov, entries in evidence.entries_of.items():
        if len(entries) > handles.MAX_HANDLES + 1:
            yield Violation(
                name_kcov(kcov),
                f"{len(entries)} handles lead to it: KCOV_REMOTE_ENABLE takes {handles.MAX_HANDLES + 1}",
                values(handles=len(entries)),
                remote_lock=True,
            )


def check_bucket(evidence: Evidence) -> Iterator[Violation]:
    """R2."""
    bits = max(evidence.census.remote_map.buckets.bit_length() - 1, 0)
    for entry in evidence.entries:
        if entry.handle is None:
            continue
        belongs = handles.find_bucket(entry.handle, bits, evidence.target.word_size)
        if belongs != entry.bucket:
            yield Violation(
                _name(entry.handle),
                f"it is in bucket {entry.bucket} and belongs into {belongs}: nobody finds it",
                values(handle=Hex(entry.handle), bucket=entry.bucket, belongs=belongs),
                remote_lock=True,
            )


def check_unique(evidence: Evidence) -> Iterator[Violation]:
    """R3."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in evidence.entries:
        if entry.handle is not None:
            found[entry.handle].append(entry.kcov or 0)
    for handle, owners in found.items():
        if len(owners) > 1:
            yield Violation(
                _name(handle),
                f"it is registered {len(owners)} times: the first one found gets the coverage",
                values(handle=Hex(handle), kcovs=name_some([*map(hex, owners)])),
                remote_lock=True,
            )


def check_valid(evidence: Evidence) -> Iterator[Violation]:
    """R4."""
    for entry in evidence.entries:
        if entry.handle is None:
            continue
        handle = handles.decode_handle(entry.handle)
        shown = values(handle=Hex(entry.handle))
        if handle.reserved:
            yield Violation(_name(entry.handle), "bits that must be zero are set in it", shown, remote_lock=True)
        elif handle.subsystem == handles.COMMON and not handle.instance:
            yield Violation(_name(entry.handle), "a common handle has an instance", shown, remote_lock=True)
        elif handle.subsystem not in (handles.COMMON, handles.USB):
            yield Violation(
                _name(entry.handle),
                f"its subsystem {handle.subsystem:#x} is none of mainline's",
                shown,
                Certainty.UNSURE,
                "other trees have subsystems of their own",
                remote_lock=True,
                severity=Severity.ADVICE,
            )


def check_target(evidence: Evidence) -> Iterator[Violation]:
    """R5."""
    for entry in evidence.entries:
        if entry.kcov is None or entry.handle is None:
            continue
        about = _name(entry.handle)
        shown = values(handle=Hex(entry.handle), kcov=Hex(entry.kcov))
        kcov = evidence.kcov(entry.kcov)
        if kcov is None:
            if not evidence.may_be_missing(entry.kcov):
                yield Violation(about, f"it leads to {entry.kcov:#x}, which is no object", shown, remote_lock=True)
            continue
        if kcov.remote and kcov.task:
            continue
        shown += values(remote=kcov.remote, t=Hex(kcov.task or 0))
        yield Violation(
            about,
            f"it leads to {name_kcov(kcov.address)}, "
            + ("whose owner is gone: " if kcov.remote else "which takes no remote coverage: ")
            + "whoever registers it gets EEXIST",
            shown,
            kcovs=(kcov.address,),
            remote_lock=True,
        )


def check_common(evidence: Evidence) -> Iterator[Violation]:
    """R6."""
    for address, entries in evidence.entries_of.items():
        common = [entry.handle for entry in entries if entry.handle is not None and handles.is_common(entry.handle)]
        about = name_kcov(address)
        if len(common) > 1:
            named = name_some([str(handles.decode_handle(handle)) for handle in common])
            yield Violation(about, f"it has {len(common)} common handles", values(handles=named), remote_lock=True)
            continue
        kcov = evidence.kcov(address)
        task = None if kcov is None else evidence.task_by_address.get(kcov.task or 0)
        if task is not None and common and task.fields.kcov_handle is not None and task.fields.kcov_handle != common[0]:
            yield Violation(
                about,
                f"its common handle is {handles.decode_handle(common[0])}, {name_task(task.fields)}, which registered it, has "
                + (str(handles.decode_handle(task.fields.kcov_handle)) if task.fields.kcov_handle else "none"),
                values(handle=Hex(common[0]), kcov_handle=Hex(task.fields.kcov_handle)),
                kcovs=(address,),
                tasks=(task.fields.address,),
                remote_lock=True,
            )


def check_reachable(evidence: Evidence) -> Iterator[Violation]:
    """R7."""
    if evidence.census.lacks("remote"):
        return
    for kcov in evidence.objects.values():
        fields = kcov.fields
        if fields is not None and fields.remote and fields.address not in evidence.entries_of:
            yield Violation(
                name_kcov(fields.address), "it takes remote coverage and has no handle: nobody can reach it", values(handles=0)
            )


def check_poison(evidence: Evidence) -> Iterator[Violation]:
    """R8."""
    word = evidence.target.word_size
    for entry in evidence.entries:
        for byte in _POISON:
            if entry.kcov in (int.from_bytes(bytes([byte]) * word, "little"), byte) or (
                entry.handle == int.from_bytes(bytes([byte]) * 8, "little")
            ):
                yield Violation(
                    f"entry {entry.address:#x}",
                    f"it is filled with {byte:#x}, the pattern of freed memory",
                    values(handle=Hex(entry.handle or 0), kcov=Hex(entry.kcov or 0)),
                    remote_lock=True,
                )
                break


_REMOTE: Final = frozenset({Feature.REMOTE})
_ERAS: Final = "v5.5 and later"
_ADD: Final = "kcov_remote_add()"

RULES: Final = (
    Rule(
        "R1",
        "the chains of kcov_remote_map are whole, and an object has 257 handles at most",
        check_chain,
        "hash_add(), hash_del() under kcov_remote_lock",
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule("R2", "a handle is in its bucket", check_bucket, _ADD, eras=_ERAS, needs=_REMOTE),
    Rule("R3", "a handle is registered once", check_unique, _ADD, eras=_ERAS, needs=_REMOTE),
    Rule(
        "R4",
        "a registered handle is valid: reserved bits zero, a common one with an instance",
        check_valid,
        "kcov_check_handle()",
        eras=_ERAS,
        needs=_REMOTE,
        detail="A USB handle may have any instance. Subsystems that mainline lacks exist in other trees: said with --all only.",
    ),
    Rule(
        "R5",
        "a handle leads to an object that takes remote coverage, for a task",
        check_target,
        "kcov_remote_reset()",
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule(
        "R6",
        "an object has one common handle at most, which its task carries",
        check_common,
        "kcov_ioctl() (KCOV_REMOTE_ENABLE)",
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule(
        "R7",
        "an object that takes remote coverage has a handle",
        check_reachable,
        "nobody: KCOV_REMOTE_ENABLE takes none",
        Severity.ADVICE,
        eras=_ERAS,
        needs=_REMOTE,
    ),
    Rule("R8", "an entry of kcov_remote_map isn't freed", check_poison, "kcov_remote_reset()", eras=_ERAS, needs=_REMOTE),
)
