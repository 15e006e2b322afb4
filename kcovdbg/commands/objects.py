# SPDX-License-Identifier: LGPL-2.1-or-later
"""``objects``: every ``struct kcov``, and who refers to it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from kcovdbg.abi.handle import decode_handle
from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.tasks import count_text
from kcovdbg.model.kcov import Kcov, Reference
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ADDRESS, ANY, BOOL, COMM, CPU, HANDLE, MODE, NUMBER, PID
from kcovdbg.render.renderable import Line, Table

# A KCOV_REMOTE_ENABLE may register 257 handles: beyond this many of a kind they are counted.
_MAX_OF_A_KIND = 3


def _field(name: str) -> Callable[[Kcov], Any]:
    return lambda kcov: None if kcov.fields is None else getattr(kcov.fields, name)


def _refcount_text(kcov: Kcov) -> str | None:
    if kcov.fields is None or kcov.fields.refcount is None:
        return None
    refcount = str(kcov.fields.refcount)
    return refcount if kcov.fields.refcount == kcov.counted else f"{refcount}, found {kcov.counted}"


def _is_balanced(kcov: Kcov) -> bool:
    return kcov.fields is None or kcov.fields.refcount in (None, kcov.counted)


def reference_text(reference: Reference) -> str:
    """Name one reference in a word or two."""
    pid = "?" if reference.pid is None else str(reference.pid)
    if reference.kind == "remote":
        return str(decode_handle(reference.handle or 0))
    if reference.kind == "fd":
        return f"file {reference.file or 0:#x}" if reference.fd is None else f"fd {pid}/{reference.fd}"
    if reference.kind == "saved" and reference.pid is None:
        return f"saved on CPU {reference.cpu}"
    return f"{reference.kind} {pid}"


def _references_text(kcov: Kcov) -> str:
    by_kind: dict[str, list[str]] = {}
    for reference in kcov.references:
        by_kind.setdefault(reference.kind, []).append(reference_text(reference))
    parts: list[str] = []
    for kind, names in by_kind.items():
        more = len(names) - _MAX_OF_A_KIND
        parts += names[:_MAX_OF_A_KIND]
        if more > 0:
            parts.append(f"{more} more {'handle' if kind == 'remote' else kind}{'s' if more > 1 else ''}")
    return ", ".join(parts) or "nothing"


def _detail_lines(kcov: Kcov) -> Iterator[Line]:
    for reference in kcov.references:
        facts = [
            ("", f"  {'counts' if reference.counts else '      '}  "),
            ("key", f"{reference.kind:<8}"),
            ("", reference_text(reference)),
        ]
        if reference.file is not None and reference.fd is not None:
            facts += [("", "  file "), ("address", f"{reference.file:#x}")]
        if reference.start is not None:
            facts += [("", "  at "), ("address", f"{reference.start:#x}")]
        if reference.cpu is not None:
            facts.append(("", f"  CPU {reference.cpu}"))
        yield facts


_REFERENCE_COLUMNS = (
    Column("kind"),
    Column("counts", NUMBER),
    Column("pid", PID),
    Column("fd", NUMBER),
    Column("file", ADDRESS),
    Column("start", ADDRESS),
    Column("handle", HANDLE),
    Column("cpu", CPU),
)
_COLUMNS = (
    Column("kcov", ADDRESS, value=lambda kcov: kcov.address),
    Column(
        "refcount",
        NUMBER,
        title="REFS",
        value=_field("refcount"),
        text=_refcount_text,
        style=lambda kcov: "number" if _is_balanced(kcov) else "warning",
    ),
    Column("counted", NUMBER),
    Column("mode", MODE),
    Column("size", NUMBER, value=_field("size"), priority=4),
    Column("area", ADDRESS, value=_field("area"), priority=3),
    Column("t", ADDRESS, value=_field("task")),
    Column("pid", PID),
    Column("comm", COMM, elastic=8, priority=1),
    Column("remote", BOOL, value=_field("remote"), priority=2, hide_empty=True),
    Column("remote_size", NUMBER, value=_field("remote_size"), priority=5, hide_empty=True),
    Column("sequence", NUMBER, value=_field("sequence"), priority=6),
    Column(
        "count",
        NUMBER,
        text=lambda kcov: count_text(kcov.count, kcov.capacity, kcov.full),
        style=lambda kcov: "warning" if kcov.full else "number",
    ),
    Column("capacity", NUMBER),
    Column("full", BOOL),
    Column("edge_area", ADDRESS, priority=7, hide_empty=True),
    Column("edge_count", NUMBER, title="EDGES", priority=2, hide_empty=True),
    Column("references", ANY, text=_references_text, items=_REFERENCE_COLUMNS, elastic=12),
)
_SHOWN = (
    "kcov",
    "refcount",
    "mode",
    "count",
    "edge_count",
    "pid",
    "comm",
    "remote",
    "references",
    "area",
    "edge_area",
    "size",
    "remote_size",
    "sequence",
)


def _run(context: Context, args: Namespace) -> Table:
    objects = context.census.objects
    remarks: list[str] = []
    rows = list(objects.values())
    if args.addresses:
        rows = [objects[address] for address in args.addresses if address in objects]
        remarks = [f"nothing refers to a struct kcov at {address:#x}" for address in args.addresses if address not in objects]
        if not rows:
            context.status = 2
    return Table(
        _COLUMNS,
        rows,
        remarks=(*context.census.remarks(), *remarks),
        empty="no such object" if args.addresses else "no struct kcov: nobody has /sys/kernel/debug/kcov open",
        errors=lambda kcov: kcov.errors,
        label=lambda kcov: "kcov" if kcov.address is None else f"kcov {kcov.address:#x}",
        details=_detail_lines if args.addresses else None,
        show=tuple(name for name in _SHOWN if name != "references") if args.addresses else _SHOWN,
    )


OBJECTS = Command(
    name="objects",
    summary="every struct kcov, and who refers to it",
    run=_run,
    description=(
        "REFS is the object's refcount; where the references that were found make another number, that follows. "
        "With addresses, each reference has a line of its own."
    ),
    arguments=(Argument(("addresses",), Value.ADDRESS, "of struct kcov", count=Count.ANY, metavar="ADDR"),),
    examples=(
        Example("objects", "which buffers exist, and what keeps them?"),
        Example("objects 0xffff888003a51c00", "all references to one of them"),
    ),
)
