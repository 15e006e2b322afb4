# SPDX-License-Identifier: LGPL-2.1-or-later
"""``buffer``: the records of a coverage buffer."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.buffers.buffer_listing import list_buffer
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, LISTING, TRACE_OPTIONS
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.record_columns import RECORD_ROWS
from kcovdbg.console.renderable import Renderable
from kcovdbg.inputs.buffer_sources import find_buffer


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    return list_buffer(context, find_buffer(context.inputs, args.what), args)


COMMAND: Final = Command(
    name="buffer",
    summary="show the records of a buffer",
    topic=Topic.BUFFERS,
    run=_run,
    row_types=RECORD_ROWS,
    description=(
        "Consecutive records of one function share a line, and a loop over several functions is "
        "shown by its first round; --raw shows each record. Comparisons are always shown one by "
        "one, with operands in hexadecimal, as signed numbers, and as characters where all bytes "
        "are printable.\n\n"
        "PC is what the kernel recorded: a return address minus the KASLR offset. ADDRESS is that "
        "address in memory. Source lines are those of the call before it. In JSON each record is "
        "an object, folded or not.\n\n"
        "If an object records addresses and edges at once (a posted series), both are shown, "
        "addresses first; -n applies to each."
    ),
    arguments=(
        Argument("what WHAT", Value.BUFFER, "the buffer"),
        *LISTING,
        *FILTERS,
        *TRACE_OPTIONS,
    ),
    examples=(
        Example("buffer 41", "what did task 41 execute?"),
        Example("buffer 41 --tail", "what did it execute last?"),
        Example(
            "buffer kcov:0xffff888004a1e000 --raw -n 100",
            "the first records of an object's buffer, one by one",
        ),
        Example("buffer file:before.kcov --file net/ipv4", "a part of a trace file"),
    ),
    needs=frozenset(),
)
