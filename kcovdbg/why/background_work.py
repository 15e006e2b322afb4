# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about background work: it can be recorded only behind a site, which is a place in the
kernel that announces a remote handle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kcovdbg.abi.handle import name_subsystem
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.kcov import name_some, name_task
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.remote import RemoteSite
from kcovdbg.model.state import State
from kcovdbg.model.task import Task, TaskFields
from kcovdbg.why.missing_coverage import Answer, list_registered

# Threads of a process do background work of io_uring since v5.12 and of vhost since v6.4. These are
# their outermost functions.
_IO_URING: Final = frozenset({"io_wq_worker", "io_wqe_worker", "io_sq_thread"})
_WORKERS: Final = _IO_URING | {"vhost_task_fn"}
# Calls the function of a work item.
_WORK_CALLER: Final = "process_one_work"
_SHOWN: Final = 8


def is_background(task: Task, stack: Sequence[StackFrame]) -> bool:
    """Return whether a task does background work: a kernel thread, or a worker of io_uring or
    vhost.
    """
    return task.fields.is_kernel_thread or not _WORKERS.isdisjoint(_functions_on(stack))


def explain_background(state: State, task: Task, sites: Sequence[RemoteSite]) -> Iterator[Answer]:
    """Yield whether the background work of a task can be recorded; nothing for a task in a session
    and for one without such work.

    :param state: with the task's stack.
    """
    stack = state.stacks[task.fields.address] or ()
    if not is_background(task, stack) or task.fields.address in state.sessions_in:
        return
    functions = _functions_on(stack)
    is_announced = any(site.is_of_io_uring for site in sites)
    if not is_announced and not _IO_URING.isdisjoint(functions):
        yield Answer(
            "io-uring-not-announced",
            "it is a worker of io_uring, and nothing in io_uring announces a remote handle on "
            "this kernel: its work cannot be recorded",
            {"sites": len(sites)},
        )
    found = _sites_on(functions, sites)
    if found:
        whose = ""
        if found[0].is_of_io_uring:
            whose = ", the handle of the task that set up the ring"
        yield Answer(
            "at-site",
            f"{_say_site(found[0])}{whose}: what runs after that call is recorded if the handle "
            f"was registered by then; it is in no section now",
            {"places": _places(found)},
            {"function": found[0].function},
        )
    elif functions:
        what, work = "it", None
        if _WORK_CALLER in functions[1:]:
            # The function of the work item that a worker runs.
            work = functions[functions.index(_WORK_CALLER) - 1]
            what = f"its work item {work}()"
        yield Answer(
            "outside-sites",
            f"{what} runs outside of the places that announce a remote handle, and is not "
            f"recorded: none of them is on its stack (see sites)",
            {"sites": len(sites), "frames": functions[-_SHOWN:]},
            {"function": work},
        )


def explain_function_work(
    state: State, function: str, sites: Sequence[RemoteSite]
) -> Iterator[Answer]:
    """Yield whether the background work of a function can be recorded.

    :param state: with the stacks of background tasks.
    """
    plain = strip_clone_suffix(function)
    for site in _sites_on([plain], sites):
        owners, registered = list_registered(state, site.subsystem)
        yield Answer(
            "announces-handle",
            f"{_say_site(site)}; registered: {owners}",
            {"places": _places([site]), "registered": registered},
            {"function": site.function},
        )
    inside: list[TaskFields] = []
    outside: list[TaskFields] = []
    for task in state.all_tasks:
        stack = state.stacks.get(task.fields.address) or ()
        names = _functions_on(stack)
        if plain not in names or not is_background(task, stack):
            continue
        with_callers = names[names.index(plain) :]
        if _sites_on(with_callers, sites):
            inside.append(task.fields)
        else:
            outside.append(task.fields)
    if inside:
        yield Answer(
            "at-site",
            f"{plain}() runs now in {name_some(map(name_task, inside))}, called from a place "
            f"that announces a remote handle",
            {"pids": [fields.pid for fields in inside]},
            {"function": plain},
        )
    if outside:
        yield Answer(
            "outside-sites",
            f"{plain}() runs now in {name_some(map(name_task, outside))}, outside of the "
            f"places that announce a remote handle: it is not recorded there (see sites)",
            {"sites": len(sites), "pids": [fields.pid for fields in outside]},
            {"function": plain},
        )


def _functions_on(stack: Sequence[StackFrame]) -> list[str]:
    return [strip_clone_suffix(frame.function) for frame in stack if frame.function]


def _sites_on(functions: Collection[str], sites: Sequence[RemoteSite]) -> list[RemoteSite]:
    """Return the sites that are in some functions: in their source, or in their code."""
    found = []
    for site in sites:
        compiled_into = strip_clone_suffix(site.symbol or site.function)
        if site.function in functions or compiled_into in functions:
            found.append(site)
    return found


def _say_site(site: RemoteSite) -> str:
    kind = "remote"
    if site.subsystem is not None:
        kind = name_subsystem(site.subsystem)
    return f"{site.function}() announces a {kind} handle"


def _places(sites: Sequence[RemoteSite]) -> list[str]:
    return [f"{site.file}:{site.line}" for site in sites if site.file is not None]
