# SPDX-License-Identifier: LGPL-2.1-or-later
"""T: invariants of tasks."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi import mode as modes
from kcovdbg.abi.generations import Feature
from kcovdbg.check.kcov_functions import is_context_switch
from kcovdbg.check.saved import (
    check_local,
    check_member,
    check_owner_mark,
    check_section,
    with_objects,
)
from kcovdbg.model.finding import Severity
from kcovdbg.model.kcov import name_some, name_task
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.remote import IRQ_LIST
from kcovdbg.model.rule import (
    Hex,
    Rule,
    Shown,
    Violations,
    kcov_violation,
    session_violation,
    task_violation,
    values,
)
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Role, Task

# The function in which a worker waits for work, and the functions on its stack while it works.
_WAITING: Final = "worker_thread"
_WORKING: Final = ("process_one_work", "process_scheduled_works")
# Allocators of buffers that softirq sections never use.
_OTHER_ALLOCATORS: Final = ("kcov_remote_start", "kcov_ioctl", "kcov_mmap")
_REMOTE: Final = (Feature.REMOTE,)
# The parts with all sessions, the saved ones included.
_SESSIONS: Final = Part.TASKS | Part.SAVED


@Rule(
    "T1",
    "the object that is enabled for a task is the one that the task collects into, and vice versa",
    guaranteed_by="kcov_ioctl() (KCOV_ENABLE), kcov_disable()",
    consequence=(
        "The task collects into a buffer that is not its own, or the object stays enabled for "
        "a task that collects nothing."
    ),
    needs=Part.OBJECTS | Part.TASKS,
    detail="While a task is in a softirq section, its own session is in its saved state.",
)
def _check_symmetry(state: State) -> Violations:
    for kcov, fields in state.readable:
        task = state.task_by_address.get(fields.task or 0)
        if task is None or fields.remote or not kcov.is_enabled:
            continue
        if not state.refers_to(task.address, fields.address):
            yield kcov_violation(
                fields.address,
                f"it is enabled for {name_task(task)}, which does not refer to it",
                values(t=Hex(task.address), task_kcov=Hex(task.kcov or 0)),
                *state.doubt(_SESSIONS),
                tasks=(task.address,),
            )
    for session, _, fields in (*with_objects(state), *with_objects(state, saved=True)):
        address = Hex(fields.address)
        if session.is_local:
            problem = ""
            if fields.task != session.task:
                problem = "is not enabled for it"
            elif fields.remote:
                problem = "takes remote coverage"
            if problem:
                message = f"it traces itself into the buffer of kcov {address}, which {problem}"
                shown = values(kcov=address, t=Hex(fields.task or 0), remote=fields.remote)
                yield session_violation(state, session, message, shown)
        elif session.mode == modes.DISABLED and not session.is_owner_mark:
            message = f"it refers to kcov {address}, but collects nothing for it"
            shown = values(kcov=address, mode=session.mode)
            yield session_violation(state, session, message, shown)
    for with_state in state.tasks:
        yield from check_member(state, with_state.fields, "kcov")


@Rule(
    "T2",
    "a task that traces itself has its object's mode, size, area and sequence",
    guaranteed_by="kcov_start()",
    consequence="Records go into another buffer, or past the end of the task's own.",
    needs=Part.OBJECTS | Part.TASKS,
    detail="Flag bits of the task's mode do not count: bit 30 is set in every task that is "
    "switched out.",
)
def _check_copies(state: State) -> Violations:
    for session, kcov, fields in with_objects(state):
        if session.is_local:
            yield from check_local(state, session, kcov, fields)


@Rule(
    "T3",
    "a task without an object has mode 0, size 0 and no area",
    guaranteed_by="kcov_stop(), kcov_task_init()",
    consequence="The task records into memory that no object keeps allocated.",
    needs=Part.TASKS,
    detail="A sequence may legally be left behind. The boot-time self-test (v6.11) sets a mode "
    "without an area.",
)
def _check_rest(state: State) -> Violations:
    has_self_test = state.kernel.has(Feature.MODE_REMOTE) or state.kernel.has(Feature.OWNER_MEMBER)
    for task in state.tasks:
        fields = task.fields
        if fields.kcov != 0:
            continue
        word = modes.strip_flags(fields.kcov_mode or 0, state.kernel.mode_flags)
        has_mode, _ = state.kernel.mode_numbers.split(word)
        if not (has_mode or fields.kcov_size or fields.kcov_area):
            continue
        # The boot-time self-test traces into no buffer, in the task that becomes init.
        traces_nowhere = not fields.kcov_area and not fields.kcov_size and task.session.is_tracing
        if has_self_test and fields.pid == 1 and traces_nowhere:
            continue
        mode, area = task.mode or modes.DISABLED, Hex(fields.kcov_area or 0)
        yield task_violation(
            fields,
            f"it has no kcov, but mode {mode}, size {fields.kcov_size} and area {area}",
            values(kcov_mode=mode, kcov_size=fields.kcov_size, kcov_area=area),
        )


@Rule(
    "T4",
    "the owner of a KCOV_REMOTE_ENABLE is marked as the owner, and the mark collects nothing",
    guaranteed_by="kcov_ioctl() (KCOV_REMOTE_ENABLE), kcov_remote_start(), kcov_remote_stop()",
    consequence=(
        "Remote coverage is never disabled: the handles stay registered after the owner exits, "
        "and fail with EEXIST for others."
    ),
    needs=Part.OBJECTS | Part.TASKS,
    features=_REMOTE,
    detail="Up to v6.9 its mode is 0, up to v7.1 KCOV_MODE_REMOTE, and since v7.2 it has "
    "kcov_remote.",
)
def _check_owners(state: State) -> Violations:
    for session, _, kcov in with_objects(state):
        if session.is_owner_mark:
            yield from check_owner_mark(state, session, kcov)
    own_member = state.kernel.has(Feature.OWNER_MEMBER)
    for kcov in state.kcovs.values():
        task = state.task_by_address.get(kcov.task or 0)
        if task is None or not kcov.remote:
            continue
        if own_member:
            is_marked = task.kcov_remote == kcov.address
            remote: object = Hex(task.kcov_remote or 0)
        else:
            of_object = state.sessions_of.get(kcov.address, ())
            idle = [session.task for session in of_object if not session.is_tracing]
            is_marked = task.address in idle
            remote = "no such member"
        if not is_marked:
            yield kcov_violation(
                kcov.address,
                f"{name_task(task)} registered its handles, but no longer refers to it",
                values(t=Hex(task.address), task_kcov=Hex(task.kcov or 0), task_kcov_remote=remote),
                *state.doubt(_SESSIONS),
                tasks=(task.address,),
            )
    if own_member:
        yield from _check_owner_members(state)


def _check_owner_members(state: State) -> Violations:
    for task in state.tasks:
        pointer = task.fields.kcov_remote
        if not pointer:
            continue
        owned = state.kcovs.get(pointer)
        if owned is None:
            yield from check_member(state, task.fields, "kcov_remote")
            continue
        if not owned.remote:
            problem = "takes no remote coverage"
        elif owned.task != task.fields.address:
            problem = "is enabled for another task"
        else:
            continue
        message = f"its kcov_remote {pointer:#x} {problem}"
        shown = values(kcov_remote=Hex(pointer), remote=owned.remote, t=Hex(owned.task or 0))
        yield task_violation(task.fields, message, shown, kcovs=(pointer,))


@Rule(
    "T5",
    "a task's mode is one that a task can have, and KCOV_MODE_REMOTE only marks an owner",
    guaranteed_by="kcov_start()",
    consequence="The task records nothing, or in the wrong format.",
    needs=Part.OBJECTS | Part.TASKS,
)
def _check_modes(state: State) -> Violations:
    kernel = state.kernel
    if not kernel.modes:
        return
    legal = kernel.mode_numbers.values
    if kernel.has(Feature.COMPARISONS):
        legal -= kernel.modes_called("MODE_INIT", "INVALID")
    for task in state.tasks:
        fields = task.fields
        if fields.kcov_mode is None:
            continue
        word = modes.strip_flags(fields.kcov_mode, kernel.mode_flags)
        if kernel.mode_numbers.split(word)[0] not in legal:
            message = f"a task cannot be in mode {word:#x}"
        elif task.mode == modes.REMOTE and not _owns(state, task):
            message = "its mode marks the owner of a KCOV_REMOTE_ENABLE, but it owns none"
        else:
            continue
        yield task_violation(
            fields,
            message,
            values(kcov_mode=Hex(fields.kcov_mode), kcov=Hex(fields.kcov or 0)),
            kcovs=(fields.kcov,) if fields.kcov else (),
        )


def _owns(state: State, task: Task) -> bool:
    """Return whether a task may own its object by KCOV_REMOTE_ENABLE."""
    kcov = state.kcovs.get(task.fields.kcov or 0)
    if kcov is None:
        # An unreadable object may be its own.
        return bool(task.fields.kcov)
    return bool(kcov.remote) and kcov.task == task.fields.address


@Rule(
    "T6",
    "a remote section collects into an area of its own that is large enough, and its sequence "
    "is not ahead of its object's",
    guaranteed_by="kcov_remote_start()",
    consequence="The section's coverage is lost, written past its area, or merged into a session "
    "that it is no part of.",
    needs=Part.OBJECTS | Part.TASKS | Part.VMALLOC,
    features=_REMOTE,
    detail="A section with an earlier sequence is legal: its object was disabled meanwhile, and "
    "its coverage is discarded.",
)
def _check_sections(state: State) -> Violations:
    for session, kcov, fields in with_objects(state):
        if session.is_section:
            yield from check_section(state, session, kcov, fields)


@Rule(
    "T7",
    "a task in a softirq section runs on a CPU, and collects into an area for softirqs",
    guaranteed_by="kcov_remote_start(), kcov_remote_stop()",
    consequence="The interrupted session is not restored: the task loses its coverage, or records "
    "into an area for softirqs.",
    needs=Part.TASKS | Part.CURRENT | Part.SAVED | Part.CACHED_AREAS | Part.VMALLOC | Part.SOFTIRQS,
    features=(Feature.SOFTIRQ,),
    detail="On PREEMPT_RT it may be preempted; there the task counts the softirqs that it serves.",
)
def _check_softirq(state: State) -> Violations:
    for task in state.tasks:
        fields = task.fields
        if not fields.kcov_softirq:
            continue
        shown = values(
            kcov_softirq=fields.kcov_softirq, cpu=fields.cpu, kcov_area=Hex(fields.kcov_area or 0)
        )
        if fields.kcov_softirq != 1:
            yield task_violation(fields, f"kcov_softirq is {fields.kcov_softirq:#x}", shown)
            continue
        if not state.kernel.is_rt and state.running and fields.address not in state.running:
            certainty, reason = state.doubt(Part.CURRENT)
            message = "it is in a softirq section, but runs on no CPU"
            yield task_violation(fields, message, shown, certainty=certainty, reason=reason)
        elif state.serving_softirq.get(fields.address) is False:
            who = "it" if state.kernel.is_rt else "its CPU"
            yield task_violation(
                fields, f"it is in a softirq section, but {who} serves no softirq", shown
            )
        yield from _check_softirq_area(state, task, shown)


def _check_softirq_area(state: State, task: Task, shown: Shown) -> Violations:
    fields = task.fields
    area = fields.kcov_area or 0
    free = [cached.address for cached in state.cached_areas if cached.list == IRQ_LIST]
    if not task.session.is_tracing:
        yield task_violation(fields, "it is in a softirq section that collects nothing", shown)
    elif state.kernel.has(Feature.IRQ_AREA_PER_CPU) and not state.kernel.is_rt:
        own = state.irq_areas.get(-1 if fields.cpu is None else fields.cpu)
        if own not in (None, area):
            message = f"its softirq section collects into {area:#x}, but its CPU's area is {own:#x}"
            yield task_violation(fields, message, shown)
    elif area in free:
        message = f"its softirq section collects into {area:#x}, which is on the list of free areas"
        yield task_violation(fields, message, shown, remote_lock=True)
    found = None if state.vmalloc is None else state.vmalloc.get(area)
    if found is None:
        return
    size = state.kernel.bytes_of(fields.kcov_size or 0)
    if state.kernel.page_align(size) != state.kernel.page_align(found.size):
        words = state.kernel.words_in(found)
        message = f"its softirq section has {fields.kcov_size} words, but its area has {words}"
        yield task_violation(fields, message, shown)
    elif found.allocator in _OTHER_ALLOCATORS:
        message = (
            f"its softirq section collects into {area:#x}, which {found.caller}() did not allocate "
            f"for softirqs"
        )
        yield task_violation(fields, message, (*shown, ("caller", found.caller)))


@Rule(
    "T8",
    "a task's handle is 0 or a common handle",
    guaranteed_by="kcov_ioctl() (KCOV_REMOTE_ENABLE)",
    consequence="Background work that the task starts is recorded for another owner, or for none.",
    needs=Part.TASKS,
    features=_REMOTE,
    detail="Children inherit it, and keep it after its owner is gone.",
)
def _check_handle(state: State) -> Violations:
    for task in state.tasks:
        handle = task.fields.kcov_handle
        if handle and not handles.is_common(handle):
            message = f"its handle {handle:#x} is not a common handle"
            yield task_violation(task.fields, message, values(kcov_handle=Hex(handle)))


def _find_marked_running(state: State) -> list[int]:
    """Return the running tasks that are marked as switched out."""
    return [
        task.fields.address
        for task in state.all_tasks
        if task.in_ctxsw and task.fields.on_cpu and task.fields.address in state.running
    ]


@Rule(
    "T9",
    "a task is marked as switched out exactly while it is",
    severity=Severity.WARNING,
    guaranteed_by="kcov_prepare_switch(), kcov_finish_switch()",
    consequence="A task that is marked as switched out records nothing while it runs.",
    needs=Part.ALL_TASKS | Part.CURRENT,
    features=(Feature.CTXSW_FLAG,),
    stacks=_find_marked_running,
    detail="A task that never ran is not marked.",
)
def _check_switch_flag(state: State) -> Violations:
    marked_running = frozenset(_find_marked_running(state))
    for task in state.all_tasks:
        fields = task.fields
        if task.in_ctxsw is None or fields.on_cpu is None:
            continue
        is_out = not fields.on_cpu and fields.address not in state.running
        if fields.address in marked_running:
            stack = state.stacks[fields.address]
            if stack is None or any(map(_is_switching, stack)):
                # The task is switched in or out at this moment, or may be.
                continue
            message = "it runs, but is marked as switched out, so that it records nothing"
        elif is_out and not task.in_ctxsw and task.session.is_tracing and fields.kcov:
            message = (
                "it is switched out, but not marked as such, so that its context switches are "
                "recorded"
            )
        else:
            continue
        shown = values(kcov_mode=Hex(fields.kcov_mode or 0), on_cpu=int(bool(fields.on_cpu)))
        yield task_violation(fields, message, shown)


def _is_switching(frame: StackFrame) -> bool:
    # A new task starts in ret_from_fork(), which finishes the switch.
    return is_context_switch(frame.function) or (frame.function or "").startswith("ret_from_fork")


@Rule(
    "T10",
    "at most one object is enabled for a task; since v7.2 one by KCOV_ENABLE and one by "
    "KCOV_REMOTE_ENABLE",
    since="v4.16 and later; before, a bug",
    guaranteed_by="kcov_ioctl() (KCOV_ENABLE, KCOV_REMOTE_ENABLE)",
    consequence="One of the objects is lost: neither KCOV_DISABLE nor the task's exit releases it.",
    needs=Part.OBJECTS | Part.TASKS,
)
def _check_number(state: State) -> Violations:
    local: dict[int, list[int]] = defaultdict(list)
    remote: dict[int, list[int]] = defaultdict(list)
    for kcov, fields in state.readable:
        if fields.task and kcov.is_enabled:
            of_tasks = remote if fields.remote else local
            of_tasks[fields.task].append(fields.address)
    for address in {**local, **remote}:
        task = state.task_by_address.get(address)
        if task is None:
            continue
        groups = [("KCOV_ENABLE", local[address]), ("KCOV_REMOTE_ENABLE", remote[address])]
        if not state.kernel.has(Feature.OWNER_MEMBER):
            groups = [("KCOV_ENABLE or KCOV_REMOTE_ENABLE", [*local[address], *remote[address]])]
        for ioctl, objects in groups:
            if len(objects) > 1:
                message = f"{len(objects)} objects are enabled for it by {ioctl}"
                named = name_some(map(hex, objects))
                shown = values(kcovs=named, task_kcov=Hex(task.kcov or 0))
                yield task_violation(task, message, shown, kcovs=tuple(objects))


@Rule(
    "T11",
    "an exiting task has no object",
    guaranteed_by="kcov_task_exit()",
    consequence="Nothing disables KCOV for it any more: the object stays enabled for a task that "
    "is freed.",
    needs=Part.TASKS | Part.EXITS,
    detail=(
        "An exiting task may be in a softirq section; and what it closes may begin remote "
        "sections in it until it is dead."
    ),
)
def _check_exiting(state: State) -> Violations:
    for task in state.tasks:
        fields = task.fields
        if not fields.is_exiting or fields.kcov_softirq:
            continue
        in_section = task.session.is_section and not state.dead.get(fields.address)
        for name, pointer in (("kcov", fields.kcov), ("kcov_remote", fields.kcov_remote)):
            if pointer and not (name == "kcov" and in_section):
                message = (
                    f"it is exiting, but still has {name} {pointer:#x}: kcov_task_exit() warned "
                    f"and left it"
                )
                shown = values(**{name: Hex(pointer)}, flags=Hex(fields.flags or 0))
                yield task_violation(fields, message, shown, kcovs=(pointer,))


def _find_threads_in_sections(state: State) -> list[int]:
    """Return the kernel threads that are in a remote section and do not run."""
    return [
        task.fields.address
        for task in state.tasks
        if task.fields.is_kernel_thread
        and task.session.role is Role.REMOTE_SECTION
        and not task.fields.on_cpu
    ]


@Rule(
    "T12",
    "a kernel thread collects only inside remote sections, and ends them with its work",
    guaranteed_by="kcov_remote_stop() and its callers",
    consequence="What the thread does next is recorded for the wrong work, and its next section "
    "warns and records nothing.",
    needs=Part.OBJECTS | Part.TASKS,
    stacks=_find_threads_in_sections,
)
def _check_kernel_threads(state: State) -> Violations:
    in_sections = frozenset(_find_threads_in_sections(state))
    for session, _, kcov in with_objects(state):
        task = state.tasks_with_state[session.task or 0].fields
        if not task.is_kernel_thread:
            continue
        if session.is_local:
            message = f"it is a kernel thread, but traces itself into kcov {kcov.address:#x}"
            yield session_violation(state, session, message, values(kcov=Hex(kcov.address)))
        elif task.address in in_sections:
            functions = {frame.function for frame in state.stacks[task.address] or ()}
            if _WAITING in functions and functions.isdisjoint(_WORKING):
                message = (
                    "it is idle inside a remote section that never ended: whatever it does next is "
                    "recorded as well"
                )
                shown = values(kcov=Hex(kcov.address), stack=f"in {_WAITING}()")
                yield session_violation(state, session, message, shown)
