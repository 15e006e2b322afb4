# SPDX-License-Identifier: LGPL-2.1-or-later
"""``objects``: every ``struct kcov`` and the references to it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kcovdbg.console.argument import Argument, Value, parse_address
from kcovdbg.console.column import RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import PIPED_WIDTH, Line, Table
from kcovdbg.console.state_columns import OBJECT_COLUMNS
from kcovdbg.console.wording import reference_text
from kcovdbg.errors import WordError
from kcovdbg.inputs.task_names import find_tids, is_address, suggest_task
from kcovdbg.model.kcov import Kcov, name_kcov
from kcovdbg.model.state import Part
from kcovdbg.model.task import TaskFiles
from kcovdbg.series.table import object_fields
from kcovdbg.target.pointer import strip_tag


def _detail_lines(kcov: Kcov) -> Iterator[Line]:
    for reference in kcov.references:
        noun = "handle " if reference.kind == "remote" else ""
        facts = [
            ("", "  counted    " if reference.counts else "  uncounted  "),
            ("key", f"{noun}{reference_text(reference)}"),
        ]
        if reference.file is not None and reference.fd is not None:
            facts += [("", ", file "), ("address", f"{reference.file:#x}")]
        if reference.start is not None:
            facts += [("", " at "), ("address", f"{reference.start:#x}")]
        if reference.cpu is not None and reference.pid is not None:
            facts.append(("", f" on CPU {reference.cpu}"))
        yield facts


_SHOWN: Final = (
    "kcov device refcount mode count pid comm remote references area size remote_size "
    "sequence".split()
)


def _find_shown() -> Iterator[str]:
    """Yield the keys that are shown. A field of a posted series follows the key that it names."""
    for key in _SHOWN:
        yield key
        yield from (field.name for field in object_fields() if field.after == key)


def _select(context: Context, objects: Mapping[int, Kcov], word: str) -> tuple[Sequence[Kcov], str]:
    """Return the objects that a word names, and the remark for the case that there are none.

    :raises WordError: when it is not an address, a thread id or the name of one task.
    """
    if is_address(word) and not word.isdecimal():
        try:
            address = strip_tag(context.target, parse_address(word))
        except ValueError:
            raise WordError(f"'{word}' is larger than any address", word) from None
        found = [objects[address]] if address in objects else []
        return found, f"nothing refers to a struct kcov at {address:#x}"
    try:
        tids = set(find_tids(context.inputs, word))
    except WordError:
        # The digits of an address may also be without 0x.
        with suppress(ValueError):
            return _select(context, objects, f"{parse_address(word):#x}")
        hint = suggest_task(context.inputs, word, is_any=True)
        raise WordError(
            f"'{word}' is not an address, thread id or task name",
            word,
            hint=hint or "objects without arguments lists all",
        ) from None
    pointers: set[int | None] = set()
    for task in context.state(Part.TASKS).tasks:
        fields = task.fields
        if fields.pid in tids:
            pointers |= {fields.kcov, fields.kcov_remote, fields.saved_kcov}
    chosen = [
        kcov
        for address, kcov in objects.items()
        if address in pointers
        or kcov.pid in tids
        or any(reference.pid in tids for reference in kcov.references)
    ]
    if not chosen:
        # A thread has the objects of its process, and another one may have its file table.
        tasks = context.state(Part.TASKS).task_fields
        files = [TaskFiles(tasks, task) for task in tasks if task.pid in tids]
        chosen = [
            kcov
            for kcov in objects.values()
            if any(one.has(found) for one in files for found in kcov.references)
        ]
    return chosen, f"no struct kcov that task {word} owns or refers to"


def _run(context: Context, args: Namespace) -> Table:
    state = context.state(Part.OBJECTS | Part.DEVICES)
    objects = dict(state.objects)
    for device in state.devices:
        objects.update(device.objects)
    remarks: list[str] = []
    rows = list(objects.values())
    if args.objects:
        found: dict[int | None, Kcov] = {}
        for word in args.objects:
            chosen, remark = _select(context, objects, word)
            found.update((kcov.address, kcov) for kcov in chosen)
            if not chosen:
                remarks.append(state.say_absent(remark, Part.OBJECTS | Part.DEVICES))
        rows = list(found.values())
        if not rows:
            context.status = 2
    table = Table(
        OBJECT_COLUMNS,
        rows,
        remarks=(*context.notes, *remarks),
        empty="no struct kcov: no task has /sys/kernel/debug/kcov open",
        errors=lambda kcov: kcov.errors,
        label=_label,
        show=list(_find_shown()),
        piped_width=PIPED_WIDTH,
    )
    if not args.objects:
        return table
    shown = [key for key in _find_shown() if key != "references"]
    return replace(
        table, empty="no such object", details=_detail_lines, show=shown, piped_width=None
    )


def _label(kcov: Kcov) -> str:
    if kcov.address is None:
        return "kcov"
    return name_kcov(kcov.address, kcov.device or "kcov")


COMMAND: Final = Command(
    name="objects",
    summary="list every struct kcov and the references to it",
    topic=Topic.STATE,
    run=_run,
    row_types=(RowType(OBJECT_COLUMNS, errors=True, unread=True),),
    description=(
        "REFS is the object's refcount, followed by the number of references found if the two "
        "differ. REFERENCES does not list the task in PID, and names other tasks only. With "
        "arguments, each reference is on a line of its own. A thread id or the name of one task "
        "selects the objects that the task owns or refers to."
    ),
    arguments=(
        Argument(
            "objects [ADDR|TID|NAME…]",
            Value.OBJECT,
            "addresses, thread ids, names of tasks, or patterns of names",
        ),
    ),
    examples=(
        Example("objects", "which objects exist, and what refers to them?"),
        Example("objects 0xffff888003a51c00", "all references to one object"),
        Example("objects 41", "the object of task 41"),
    ),
)
