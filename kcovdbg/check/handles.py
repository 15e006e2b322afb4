# SPDX-License-Identifier: LGPL-2.1-or-later
"""R: invariants of ``kcov_remote_map``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi.address import word_mask
from kcovdbg.abi.generations import Feature
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import name_kcov, name_some, name_task
from kcovdbg.model.memory import ListLink
from kcovdbg.model.rule import Hex, Rule, Violation, Violations, values
from kcovdbg.model.state import Part, State

# The bytes that fill freed slab objects and their red zones: include/linux/poison.h.
_POISON: Final = (0x6B, 0xA5, 0x5A, 0xBB, 0xCC)
_remote_rule = partial(Rule, features=(Feature.REMOTE,))


def _name(handle: int) -> str:
    return f"handle {handles.decode_handle(handle)}"


def _violation(
    handle: int, message: str, *, kcovs: tuple[int, ...] = (), **shown: object
) -> Violation:
    return Violation(
        _name(handle), message, values(handle=Hex(handle), **shown), kcovs=kcovs, remote_lock=True
    )


def check_link(about: str, link: ListLink, what: str, *, element: str, member: str) -> Violations:
    """Check one link of a list: the next element can be reached, and links back to this one.

    :param about: the name of the list in findings.
    :param what: the list in the message.
    :param element: the kind of the elements; in the values, it names their addresses.
    :param member: the member that links back.
    """
    if link.problem is not None:
        certainty, reason = Certainty.CERTAIN, None
        if link.is_missing:
            certainty, reason = Certainty.UNKNOWN, "the memory may be missing from the target"
        message = f"{what} is broken: {link.problem}"
        shown = values(link=Hex(link.address))
        yield Violation(about, message, shown, certainty, reason, remote_lock=True)
    elif link.back is not None and link.back != link.expected:
        name = f"the {element} at {link.address:#x}"
        if element == "area":
            # An area is its own list entry.
            name = f"{link.address:#x}"
        message = f"{member} of {name} is {link.back:#x}, not {link.expected:#x}"
        addresses = {element: link.address, member: link.back, "expected": link.expected}
        shown = values(**{key: Hex(address) for key, address in addresses.items()})
        yield Violation(about, message, shown, remote_lock=True)


@_remote_rule(
    "R1",
    f"the chains of kcov_remote_map are intact, and an object has at most "
    f"{handles.MAX_HANDLES + 1} handles",
    guaranteed_by="hash_add(), hash_del() under kcov_remote_lock",
    consequence="Looking up or removing a handle runs forever or into freed memory; handles behind "
    "the damage are lost.",
    needs=Part.REMOTE | Part.LINKS,
)
def _check_chain(state: State) -> Violations:
    for link in state.hash_links:
        yield from check_link(link.list, link, "its chain", element="entry", member="pprev")
    for kcov, entries in state.handles_of.items():
        if len(entries) > handles.MAX_HANDLES + 1:
            yield Violation(
                name_kcov(kcov),
                f"{len(entries)} handles lead to it, but KCOV_REMOTE_ENABLE accepts "
                f"{handles.MAX_HANDLES + 1}",
                values(handles=len(entries)),
                remote_lock=True,
            )


@_remote_rule(
    "R2",
    "a handle is in its hash bucket",
    guaranteed_by="kcov_remote_add()",
    consequence="It is not found: sections under it record nothing, and it can be registered a "
    "second time.",
    needs=Part.REMOTE,
)
def _check_bucket(state: State) -> Violations:
    # The number of buckets is a power of 2.
    bits = max(state.buckets.bit_length() - 1, 0)
    for entry in state.handles:
        if entry.handle is None:
            continue
        right = handles.find_bucket(entry.handle, bits, state.kernel.word_size)
        if right != entry.bucket:
            message = f"it is in bucket {entry.bucket} instead of {right}: no look-up finds it"
            yield _violation(entry.handle, message, bucket=entry.bucket, belongs=right)


@_remote_rule(
    "R3",
    "a handle is registered once",
    guaranteed_by="kcov_remote_add()",
    consequence="Only one of the objects gets the coverage.",
    needs=Part.REMOTE,
)
def _check_unique(state: State) -> Violations:
    kcovs_of: dict[int, list[int]] = defaultdict(list)
    for entry in state.handles:
        if entry.handle is not None:
            kcovs_of[entry.handle].append(entry.kcov or 0)
    for handle, kcovs in kcovs_of.items():
        if len(kcovs) > 1:
            message = (
                f"it is registered {len(kcovs)} times: the object found first gets the coverage"
            )
            shown = values(handle=Hex(handle), kcovs=name_some(map(hex, kcovs)))
            yield Violation(_name(handle), message, shown, remote_lock=True)


@_remote_rule(
    "R4",
    "a registered handle is valid: reserved bits are zero, and a common handle has an instance",
    guaranteed_by="kcov_check_handle()",
    consequence="No section uses it: its owner gets no coverage under it.",
    needs=Part.REMOTE,
    detail="A USB handle may have any instance. Other trees have more subsystems: those are "
    "reported with --all only.",
)
def _check_valid(state: State) -> Violations:
    for entry in state.handles:
        if entry.handle is None:
            continue
        handle = handles.decode_handle(entry.handle)
        if handle.reserved:
            yield _violation(entry.handle, "reserved bits are set in it")
        elif handle.subsystem == handles.COMMON and not handle.instance:
            yield _violation(entry.handle, "it is a common handle without an instance")
        elif handle.subsystem not in (handles.COMMON, handles.USB):
            yield replace(
                _violation(entry.handle, f"mainline has no subsystem {handle.subsystem:#x}"),
                certainty=Certainty.UNSURE,
                reason="other trees have subsystems of their own",
                severity=Severity.ADVICE,
            )


@_remote_rule(
    "R5",
    "a handle leads to an object that takes remote coverage for a task",
    guaranteed_by="kcov_remote_reset()",
    consequence=(
        "Sections record into an object that nobody reads or that is freed; registering the "
        "handle again fails with EEXIST."
    ),
    needs=Part.REMOTE | Part.OBJECTS,
)
def _check_target(state: State) -> Violations:
    for entry in state.handles:
        if entry.kcov is None or entry.handle is None:
            continue
        kcov = state.kcovs.get(entry.kcov)
        if kcov is None:
            # An object that is unreadable is not judged.
            if not state.kernel.is_pointer(entry.kcov):
                message = f"it leads to {entry.kcov:#x}, which is not an object"
                yield _violation(entry.handle, message, kcov=Hex(entry.kcov))
            continue
        if kcov.remote and kcov.task:
            continue
        problem = "whose owner is gone" if kcov.remote else "which takes no remote coverage"
        yield _violation(
            entry.handle,
            f"it leads to {name_kcov(kcov.address)}, {problem}: registering it fails with EEXIST",
            kcovs=(kcov.address,),
            kcov=Hex(entry.kcov),
            remote=kcov.remote,
            t=Hex(kcov.task or 0),
        )


@_remote_rule(
    "R6",
    "an object has at most one common handle, and its task carries that handle",
    guaranteed_by="kcov_ioctl() (KCOV_REMOTE_ENABLE)",
    consequence="Background work of the task is recorded for another object, or for none.",
    needs=Part.REMOTE | Part.OBJECTS | Part.TASKS,
)
def _check_common(state: State) -> Violations:
    for address, entries in state.handles_of.items():
        known = [entry.handle for entry in entries if entry.handle is not None]
        common = [handle for handle in known if handles.is_common(handle)]
        about = name_kcov(address)
        if len(common) > 1:
            message = f"it has {len(common)} common handles"
            named = name_some(str(handles.decode_handle(handle)) for handle in common)
            yield Violation(about, message, values(handles=named), remote_lock=True)
        kcov = state.kcovs.get(address)
        if len(common) != 1 or kcov is None:
            continue
        handle = common[0]
        task = state.task_by_address.get(kcov.task or 0)
        if task is None or task.kcov_handle in (None, handle):
            continue
        carried = "none"
        if task.kcov_handle:
            carried = str(handles.decode_handle(task.kcov_handle))
        yield Violation(
            about,
            f"its common handle is {handles.decode_handle(handle)}, but {name_task(task)}, which "
            f"registered it, carries {carried}",
            values(handle=Hex(handle), kcov_handle=Hex(task.kcov_handle or 0)),
            kcovs=(address,),
            tasks=(task.address,),
            remote_lock=True,
        )


@_remote_rule(
    "R7",
    "an object that takes remote coverage has a handle",
    severity=Severity.ADVICE,
    guaranteed_by="nothing: KCOV_REMOTE_ENABLE accepts none",
    consequence="The object collects nothing.",
    needs=Part.REMOTE | Part.OBJECTS,
)
def _check_reachable(state: State) -> Violations:
    if state.unread(Part.REMOTE):
        return
    for address, kcov in state.kcovs.items():
        if kcov.remote and address not in state.handles_of:
            message = "it takes remote coverage but has no handle: no section can find it"
            yield Violation(name_kcov(address), message, values(handles=0))


@_remote_rule(
    "R8",
    "an entry of kcov_remote_map is not freed",
    guaranteed_by="kcov_remote_reset()",
    consequence="The next look-up in its bucket reads freed memory.",
    needs=Part.REMOTE,
)
def _check_poison(state: State) -> Violations:
    for entry in state.handles:
        for byte in _POISON:
            poisoned_handle = int.from_bytes(bytes([byte]) * 8, "little")
            poisoned_pointer = poisoned_handle & word_mask(state.kernel.word_size)
            if entry.handle == poisoned_handle or entry.kcov in (poisoned_pointer, byte):
                yield Violation(
                    f"entry {entry.address:#x}",
                    f"it is filled with {byte:#x}, the pattern of freed memory",
                    values(handle=Hex(entry.handle or 0), kcov=Hex(entry.kcov or 0)),
                    remote_lock=True,
                )
                break
