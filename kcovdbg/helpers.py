# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn helpers for KCOV.

The walkers find addresses; these helpers wrap them in drgn Objects, so that they combine with
everything else in drgn::

    >>> from kcovdbg.helpers import for_each_kcov, kcov_count
    >>> for kcov in for_each_kcov(prog):
    ...     print(hex(kcov), kcov.mode, kcov_count(kcov))

They support every generation of KCOV that kcovdbg supports. Helpers that search the kernel issue a
warning (module warnings) for each structure that they could not read: then objects that this
structure leads to may be missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import drgn
from drgn import NULL, Object, Program
from drgn.helpers.common.prog import takes_program_or_default

from kcovdbg.abi.generations import KCOV, TASK
from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.record import PC, decode_words, make_encoding
from kcovdbg.model.state import Part, State
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.pointer import strip_tag
from kcovdbg.target.struct_layout import find_member
from kcovdbg.walk.layout import Layout, detect_layout, field_paths
from kcovdbg.walk.objects import check_buffer, find_capacity, read_count, read_kcov
from kcovdbg.walk.state import StateReader, read_state
from kcovdbg.walk.tasks import read_task

if TYPE_CHECKING:
    from kcovdbg.model.kcov import KcovFields, Reference
    from kcovdbg.model.task import Task

__all__ = (
    "decode_kcov_handle",
    "find_kcov_area",
    "for_each_kcov",
    "for_each_kcov_area",
    "for_each_kcov_remote",
    "for_each_kcov_saved",
    "for_each_kcov_task",
    "kcov_capacity",
    "kcov_count",
    "kcov_generation",
    "kcov_mode_name",
    "kcov_references",
    "kcov_task_state",
    "kcov_words",
)

_TARGET = "kcovdbg_target"
_LAYOUT = "kcovdbg_layout"


def program_target(prog: Program) -> DrgnTarget:
    """Return a Program as a target; there is one per Program, in its cache."""
    cache = prog.cache
    if _TARGET not in cache:
        is_live = bool(prog.flags & drgn.ProgramFlags.IS_LIVE)
        is_local = bool(prog.flags & drgn.ProgramFlags.IS_LOCAL)
        # The names that kcovdbg itself gives them, so that its answers are the same.
        name = prog.core_dump_path or ("the running kernel" if is_local else "drgn's program")
        if is_live and is_local:
            name = "the running kernel"
        cache[_TARGET] = DrgnTarget(prog, name, is_live)
    target: DrgnTarget = cache[_TARGET]
    return target


def _target(prog: Program) -> tuple[DrgnTarget, Layout]:
    target = program_target(prog)
    if _LAYOUT not in prog.cache:
        prog.cache[_LAYOUT] = detect_layout(target)
    return target, prog.cache[_LAYOUT]


def _state(prog: Program, part: Part) -> State:
    state = read_state(*_target(prog), part)
    for line in state.unread(part):
        # Names in the kernel's memory may have any characters.
        text = line if line.isprintable() else ascii(line)
        # In the name of the helper's caller.
        warnings.warn(text, stacklevel=3)
    return state


def _address(target: DrgnTarget, pointer: Object) -> int:
    """Return the address in a pointer of drgn, without the tag that it has in kernels with tags."""
    return strip_tag(target, pointer.value_())


def _read(kcov: Object) -> tuple[DrgnTarget, Layout, KcovFields]:
    target, layout = _target(kcov.prog_)
    return target, layout, read_kcov(target, layout, _address(target, kcov))


def _object(prog: Program, type_name: str, address: int | None) -> Object:
    return Object(prog, f"{type_name} *", address) if address else NULL(prog, f"{type_name} *")


@takes_program_or_default
def kcov_generation(prog: Program) -> str:
    """Return the generation of this kernel's KCOV.

    :return: for instance ``E9a``; the documentation has the table of generations.
    """
    return _target(prog)[1].generation.era


@takes_program_or_default
def for_each_kcov(prog: Program) -> Iterator[Object]:
    """Iterate over every ``struct kcov`` of tasks, saved sessions, handles, open files, mappings
    and lost buffers.

    :return: Iterator of ``struct kcov *`` objects.
    """
    for address in _state(prog, Part.OBJECTS).objects:
        yield _object(prog, "struct kcov", address)


@takes_program_or_default
def for_each_kcov_task(prog: Program) -> Iterator[Object]:
    """Iterate over the tasks with KCOV state, idle and exiting tasks included.

    :return: Iterator of ``struct task_struct *`` objects.
    """
    for task in _state(prog, Part.TASKS).tasks:
        yield _object(prog, "struct task_struct", task.fields.address)


@takes_program_or_default
def for_each_kcov_remote(prog: Program) -> Iterator[Object]:
    """Iterate over the registered remote handles.

    :return: Iterator of ``struct kcov_remote *`` objects.
    """
    for entry in _state(prog, Part.REMOTE).handles:
        yield _object(prog, "struct kcov_remote", entry.address)


@takes_program_or_default
def for_each_kcov_area(prog: Program) -> Iterator[tuple[Object, str, str | None]]:
    """Iterate over remote and softirq areas.

    :return: Iterator of (``void *`` object, list, state): the list is ``task`` or ``irq``, the
        state ``cached``, ``in-use``, ``saved`` or ``unclaimed``, None where it is unknown.
    """
    for area in _state(prog, Part.AREAS).areas:
        yield Object(prog, "void *", area.address), area.list, area.state


@takes_program_or_default
def for_each_kcov_saved(prog: Program) -> Iterator[tuple[Object, Object]]:
    """Iterate over the sessions that a softirq section interrupted.

    :return: Iterator of (``struct task_struct *`` whose session it is, ``struct kcov *`` of the
        session) objects; NULL where unknown.
    """
    for saved in _state(prog, Part.SAVED).saved:
        yield (
            _object(prog, "struct task_struct", saved.task),
            _object(prog, "struct kcov", saved.kcov),
        )


def kcov_task_state(task: Object) -> Task:
    """Return a task's KCOV state.

    :param task: ``struct task_struct *``
    :return: role, owner, count and the fields as read, see :class:`kcovdbg.model.task.Task`.
    :raises ReadError: when the task is unreadable.
    """
    target, layout = _target(task.prog_)
    return StateReader(target, layout).interpret(read_task(target, layout, _address(target, task)))


def kcov_references(kcov: Object) -> tuple[Reference, ...]:
    """Return the references to an object. A reference that the kernel counts has ``counts == 1``.

    :param kcov: ``struct kcov *``
    """
    target, _ = _target(kcov.prog_)
    objects = _state(kcov.prog_, Part.OBJECTS).objects
    found = objects.get(_address(target, kcov))
    return () if found is None else found.references


def find_kcov_area(kcov_or_task: Object) -> Object:
    """Return the buffer of an object, or the buffer or area that a task collects into.

    :param kcov_or_task: ``struct kcov *`` or ``struct task_struct *``
    :return: ``void *``, NULL where there is none.
    """
    target, _ = _target(kcov_or_task.prog_)
    prog = kcov_or_task.prog_
    type_name, name = KCOV, "area"
    if kcov_or_task.type_.type.tag == "task_struct":
        type_name, name = TASK, "kcov_area"
    member = find_member(target, type_name, field_paths(type_name, name))
    if member is None:
        return NULL(prog, "void *")
    area = prog.read_word(_address(target, kcov_or_task) + member.offset)
    return Object(prog, "void *", strip_tag(target, area))


def kcov_count(kcov: Object) -> int | None:
    """Return the count word of an object's buffer as stored; user space can write it.

    :param kcov: ``struct kcov *``
    :return: None where it has no buffer.
    """
    target, layout = _target(kcov.prog_)
    area = find_kcov_area(kcov).value_()
    if not area:
        return None
    check_buffer(target, area)
    return read_count(target, layout, area)


def kcov_capacity(kcov: Object) -> int | None:
    """Return the capacity of an object's buffer, in records.

    :param kcov: ``struct kcov *``
    :return: None where it has no buffer.
    """
    _, layout, found = _read(kcov)
    return find_capacity(
        layout, layout.object_mode_name(found.mode or 0, found.mode_flag), found.size
    )


def kcov_words(kcov: Object) -> list[int]:
    """Return an object's whole buffer as words of the kernel, the count word first.

    :param kcov: ``struct kcov *``
    """
    target, layout, found = _read(kcov)
    if not found.area or not found.size:
        return []
    check_buffer(target, found.area)
    data = target.read(found.area, found.size * layout.buffer_word)
    encoding = make_encoding(PC, layout.buffer_word, target.big_endian)
    return list(decode_words(data, encoding))


def kcov_mode_name(kcov_or_task: Object) -> str:
    """Return the name of the mode of an object or a task, flag bits masked.

    :param kcov_or_task: ``struct kcov *`` or ``struct task_struct *``
    :return: for instance ``TRACE_PC``.
    """
    if kcov_or_task.type_.type.tag == "task_struct":
        return kcov_task_state(kcov_or_task).mode or "?"
    _, layout, found = _read(kcov_or_task)
    return layout.object_mode_name(found.mode or 0, found.mode_flag)


def decode_kcov_handle(handle: Object | int) -> str:
    """Return the text form of a remote handle.

    :param handle: ``u64``
    :return: for instance ``usb:1`` or ``common:0x42``.
    """
    return str(decode_handle(int(handle)))
