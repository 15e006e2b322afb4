# SPDX-License-Identifier: LGPL-2.1-or-later
"""S: invariants of saved state; and the checks of a session, which the rules of tasks (T) use as
well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kcovdbg.abi import mode as modes
from kcovdbg.abi.generations import Feature
from kcovdbg.abi.record import signed_value
from kcovdbg.check.kcov_functions import find_kcov_function
from kcovdbg.model.kcov import Kcov, KcovFields, name_some, name_task
from kcovdbg.model.rule import (
    Hex,
    Rule,
    Shown,
    Violation,
    Violations,
    session_violation,
    task_violation,
    values,
)
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Role, SavedState, Session, TaskFields


def with_objects(
    state: State, *, saved: bool = False
) -> Iterator[tuple[Session, Kcov, KcovFields]]:
    """Yield the sessions whose object can be read, each with the object and its fields.

    :param saved: whether to yield saved sessions, and not those in tasks' own fields.
    """
    for session in state.sessions:
        kcov = state.objects.get(session.kcov or 0)
        if kcov is not None and kcov.fields is not None and session.is_saved == saved:
            yield session, kcov, kcov.fields


def check_member(state: State, fields: TaskFields, member: str) -> Violations:
    """Check that a member of a task is NULL or a possible address of an object."""
    pointer: int | None = getattr(fields, member)
    if pointer and not state.kernel.is_pointer(pointer):
        message = f"its {member} {pointer:#x} is not a kernel address"
        yield task_violation(fields, message, values(**{member: Hex(pointer)}))


def check_local(state: State, session: Session, kcov: Kcov, fields: KcovFields) -> Violations:
    """Compare a local session with its object, of which it is a copy."""
    pairs = (
        ("mode", session.mode, kcov.mode),
        ("size", session.size, fields.size),
        ("area", _hex(session.area), _hex(fields.area)),
        ("sequence", session.sequence, fields.sequence),
    )
    for name, copy, original in pairs:
        if copy is None or original is None or copy == original:
            continue
        message = (
            f"it traces itself with {name} {copy}, but {name} of kcov {fields.address:#x} is "
            f"{original}"
        )
        shown = (
            ("kcov", hex(fields.address)),
            (f"task {name}", str(copy)),
            (f"kcov {name}", str(original)),
        )
        yield session_violation(state, session, message, shown)


def _hex(address: int | None) -> Hex | None:
    return None if address is None else Hex(address)


def check_section(state: State, session: Session, kcov: Kcov, fields: KcovFields) -> Violations:
    """Compare a remote section with its object and with the memory that it collects into."""
    shown = values(kcov=Hex(fields.address), area=Hex(session.area or 0), size=session.size)
    for problem in _find_area_problems(state, session, fields):
        yield session_violation(state, session, problem, shown)
    if session.sequence is None or fields.sequence is None:
        return
    shown += values(task_sequence=session.sequence, kcov_sequence=fields.sequence)
    for problem in _find_object_problems(session, session.sequence, kcov, fields):
        yield session_violation(state, session, problem, shown)


def _find_area_problems(state: State, session: Session, fields: KcovFields) -> Iterator[str]:
    """Yield the reasons why a section cannot collect into its area, or not for its object."""
    if state.vmalloc is not None and session.area is not None:
        start, size = session.area, session.size or 0
        area = state.vmalloc.get(start)
        if area is None:
            yield f"its section collects into {start:#x}, which is not the start of a vmalloc area"
        elif size > state.kernel.words_in(area):
            words = state.kernel.words_in(area)
            yield f"its section uses {size} words of area {start:#x}, which has {words}"
    is_of_task = session.role is not Role.SOFTIRQ_SECTION and not session.is_saved
    if is_of_task and state.kernel.has(Feature.MODE_REMOTE) and fields.task == session.task:
        yield "it is in a section for an object that it has enabled itself"


def _find_object_problems(
    session: Session, sequence: int, kcov: Kcov, fields: KcovFields
) -> Iterator[str]:
    """Yield the disagreements of a section with its object.

    :param sequence: the section's sequence.
    """
    # Sequences are ints that wrap: the sign of their difference shows which one is later.
    ahead = signed_value(sequence - (fields.sequence or 0), 4)
    if ahead > 0:
        yield f"its section has sequence {sequence}, but the object only reached {fields.sequence}"
        return
    if ahead < 0:
        # The object was disabled during the section, which is legal: the coverage will be
        # discarded.
        return
    if not fields.remote:
        yield "its section is for an object that takes no remote coverage"
        return
    size, wanted = session.size, fields.remote_size
    is_of_task = session.role is not Role.SOFTIRQ_SECTION
    if is_of_task and None not in (size, wanted) and size != wanted:
        yield f"its section's area has {size} words, but remote_size is {wanted}"
    if session.mode != kcov.mode:
        yield f"its section is in mode {session.mode}, but the object is in {kcov.mode}"


def check_owner_mark(state: State, session: Session, fields: KcovFields) -> Violations:
    """Check the fields of a task that owns an object by KCOV_REMOTE_ENABLE, on kernels where the
    task's ``kcov`` marks it as the owner.
    """
    if state.kernel.has(Feature.OWNER_MEMBER):
        return
    wanted = modes.REMOTE if state.kernel.has(Feature.MODE_REMOTE) else modes.DISABLED
    mode, size, area = session.mode, session.size, Hex(session.area or 0)
    if mode != wanted or size or area:
        yield session_violation(
            state,
            session,
            f"it owns remote kcov {fields.address:#x}, but has mode {mode}, size {size} and area "
            f"{area} instead of {wanted}, 0 and 0",
            values(kcov=Hex(fields.address), mode=mode, size=size, area=area),
        )


_PER_CPU: Final = (Feature.SAVED_PER_CPU,)


def _shown(saved: SavedState) -> Shown:
    return values(
        saved_mode=Hex(saved.mode or 0),
        saved_size=saved.size,
        saved_area=Hex(saved.area or 0),
        saved_kcov=Hex(saved.kcov or 0),
        saved_sequence=saved.sequence,
    )


@Rule(
    "S1",
    "a CPU's saved state is entirely empty, or has an object",
    guaranteed_by="kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
    consequence="The session that a softirq interrupted is lost, or restored in part.",
    needs=Part.SAVED | Part.CURRENT,
    features=_PER_CPU,
    detail="Some unmerged kernels do not reset saved_mode.",
)
def _check_whole(state: State) -> Violations:
    for cpu, saved in state.cpu_states.items():
        if saved.kcov:
            continue
        if state.kernel.leaves_saved_state:
            is_left = bool(saved.size or saved.area)
        else:
            is_left = not saved.is_empty
        if is_left:
            current = state.current.get(cpu)
            yield Violation(
                f"CPU {cpu}",
                "its saved state has no object, but is not empty",
                _shown(saved),
                tasks=(current,) if current else (),
            )


@Rule(
    "S2",
    "a CPU's saved state is in use only while the task that runs there is in a softirq section",
    guaranteed_by="kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
    consequence="A session is restored into a task that it does not belong to, or never.",
    needs=Part.TASKS | Part.SAVED | Part.CURRENT,
    features=_PER_CPU,
)
def _check_on_top(state: State) -> Violations:
    for cpu, saved in state.cpu_states.items():
        task = state.task_by_address.get(state.current.get(cpu, 0))
        if saved.kcov and task is not None and task.kcov_softirq == 0:
            yield Violation(
                f"CPU {cpu}",
                f"a session is saved, but {name_task(task)}, which runs there, is not in a "
                f"softirq section",
                (*_shown(saved), ("kcov_softirq", "0")),
                tasks=(task.address,),
                kcovs=(saved.kcov,),
            )


@Rule(
    "S3",
    "a saved session is one that a task can have: local, a section, or an owner's mark",
    guaranteed_by="kcov_remote_softirq_start()",
    consequence="After the softirq the task records nothing, or into the wrong buffer.",
    needs=Part.OBJECTS | Part.TASKS | Part.VMALLOC,
    features=(Feature.SOFTIRQ,),
    detail="A softirq section that interrupts a task without a session saves nothing. The saved "
    "mode may have bit 30.",
)
def _check_session(state: State) -> Violations:
    for session in state.sessions:
        if not session.is_saved:
            continue
        kcov = state.objects.get(session.kcov or 0)
        if not session.is_tracing and session.mode != modes.REMOTE:
            message = f"a session in mode {session.mode} is never saved"
            yield session_violation(state, session, message, values(saved_mode=session.mode))
        elif kcov is None or kcov.fields is None:
            continue
        elif session.is_local:
            yield from check_local(state, session, kcov, kcov.fields)
        elif session.is_section:
            yield from check_section(state, session, kcov, kcov.fields)
        elif session.is_owner_mark:
            yield from check_owner_mark(state, session, kcov.fields)
        else:
            message = f"it is marked as the owner of kcov {session.kcov:#x}, but is not"
            yield session_violation(state, session, message, values(kcov=Hex(session.kcov or 0)))
    for task in state.tasks:
        yield from check_member(state, task.fields, "saved_kcov")


@Rule(
    "S4",
    "a task's saved state is entirely empty, unless the task is in a softirq section that "
    "interrupted a session of its own",
    guaranteed_by="kcov_remote_softirq_start(), kcov_remote_softirq_stop()",
    consequence="The session that a softirq interrupted is lost, or restored over another one.",
    needs=Part.TASKS,
    features=(Feature.SAVED_IN_TASK,),
)
def _check_left_over(state: State) -> Violations:
    for task in state.tasks:
        saved, fields = task.saved, task.fields
        if saved is None:
            continue
        shown = _shown(saved)
        if not saved.kcov:
            message = "its saved state has no object, but is not empty"
            yield task_violation(fields, message, shown)
        elif fields.kcov_softirq == 0:
            message = (
                "a session of its own is saved, but it is not in a softirq section: it lost that "
                "session"
            )
            yield task_violation(fields, message, (*shown, ("kcov_softirq", "0")))


@Rule(
    "S5",
    "each CPU has an area for softirq sections of its own, and all of these have one size",
    guaranteed_by="kcov_init()",
    consequence="Softirq sections of two CPUs overwrite each other's records, or fault.",
    needs=Part.SAVED | Part.VMALLOC,
    features=(Feature.IRQ_AREA_PER_CPU,),
)
def _check_cpu_areas(state: State) -> Violations:
    if not state.irq_areas:
        # kcov_init() has not run yet.
        return
    cpus_with_area: dict[int, list[int]] = defaultdict(list)
    cpus_with_size: dict[int, list[int]] = defaultdict(list)
    for cpu, saved in state.cpu_states.items():
        area = saved.irq_area
        if area == 0:
            yield Violation(f"CPU {cpu}", "it has no area for softirq sections", values(irq_area=0))
        if not area:
            continue
        cpus_with_area[area].append(cpu)
        if state.vmalloc is None:
            continue
        memory = state.vmalloc.get(area)
        if memory is None:
            message = f"its area for softirq sections {area:#x} is not the start of a vmalloc area"
            yield Violation(f"CPU {cpu}", message, values(irq_area=Hex(area)))
        else:
            cpus_with_size[state.kernel.page_align(memory.size)].append(cpu)
    for area, cpus in cpus_with_area.items():
        if len(cpus) > 1:
            named = name_some(map(str, cpus))
            yield Violation(
                f"CPU {cpus[0]}",
                f"CPUs {named} share one area for softirq sections",
                values(irq_area=Hex(area)),
            )
    usual = max(cpus_with_size, key=lambda size: len(cpus_with_size[size]), default=0)
    for size, cpus in cpus_with_size.items():
        if size != usual:
            message = (
                f"its area for softirq sections has {size} bytes, but areas of other CPUs have "
                f"{usual}"
            )
            yield Violation(f"CPU {cpus[0]}", message, values(size=size))


def _find_lock_owners(state: State) -> list[int]:
    return [owner for owner in state.cpu_lock_owners.values() if owner in state.task_by_address]


@Rule(
    "S6",
    "the lock of a CPU's KCOV state is held only inside kcov_remote_start() and kcov_remote_stop()",
    since="v5.16 and later, where the lock has an owner",
    guaranteed_by="kcov_remote_start(), kcov_remote_stop()",
    consequence="Two sections change the CPU's state at once, or the next one waits forever.",
    needs=Part.TASKS | Part.LOCKS,
    features=(Feature.SOFTIRQ,),
    stacks=_find_lock_owners,
)
def _check_lock(state: State) -> Violations:
    for cpu, owner in state.cpu_lock_owners.items():
        task = state.task_by_address.get(owner)
        if task is None:
            problem = f"{owner:#x}, which is not a task"
        else:
            stack = state.stacks[owner]
            if not stack or find_kcov_function(stack) is not None:
                continue
            problem = f"{name_task(task)}, which is not inside a function of KCOV"
        yield Violation(
            f"CPU {cpu}",
            f"the lock of its KCOV state is held by {problem}",
            values(owner=Hex(owner)),
        )
