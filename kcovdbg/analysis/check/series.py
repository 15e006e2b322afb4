# SPDX-License-Identifier: LGPL-2.1-or-later
"""T, continued: what holds for what posted series add to a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcovdbg.abi.era import Feature
from kcovdbg.analysis.check.evidence import Evidence, Hex, name_task, values
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.errors import KcovdbgError
from kcovdbg.walk.block import find_member
from kcovdbg.walk.dataflow import read_dataflow, read_task_dataflow
from kcovdbg.walk.layout import TASK

_RECORDING: Final = ("__sanitizer_cov_trace_", "write_comp_data")


def check_writing(evidence: Evidence) -> Iterator[Violation]:
    """T13."""
    member = find_member(evidence.target, TASK, ("kcov_writing",))
    for task in evidence.tasks if member is not None else ():
        fields = task.fields
        try:
            writing = any(evidence.target.read(fields.address + member.offset, member.size)) if member is not None else False
        except KcovdbgError:
            continue
        # One that runs may be about to clear it; one that is switched out was interrupted while it recorded, and shows that.
        if not writing or fields.on_cpu or fields.address in evidence.running:
            continue
        stack = evidence.stack(fields.address)
        if stack and not any((frame.function or "").startswith(_RECORDING) for frame in stack):
            yield Violation(
                name_task(fields),
                "it is marked as recording, and is in no function that records: it records nothing any more",
                values(kcov_writing=1),
                tasks=(fields.address,),
            )


def check_dataflow(evidence: Evidence) -> Iterator[Violation]:
    """T14."""
    target = evidence.target
    for task in evidence.tasks:
        fields = task.fields
        try:
            mine = read_task_dataflow(target, fields.address)
            # In a remote section it collects into an area that is nobody's.
            if not mine.df or mine.depth != 0:
                continue
            its = read_dataflow(target, mine.df)
        except KcovdbgError:
            continue
        shown = values(kcov_df=Hex(mine.df), kcov_df_area=Hex(mine.area or 0), kcov_df_size=mine.size)
        if its.task is not None and its.task != fields.address:
            yield Violation(
                name_task(fields),
                f"its kcov_df {mine.df:#x} is enabled for {its.task:#x}",
                (*shown, ("t", hex(its.task))),
                tasks=(fields.address,),
            )
            continue
        for name, one, other in (("area", mine.area, its.area), ("size", mine.size, its.size)):
            if one is not None and other is not None and one != other:
                yield Violation(
                    name_task(fields),
                    f"its kcov_df_{name} is {one:#x}, kcov_df {mine.df:#x} says {other:#x}",
                    (*shown, (name, hex(other))),
                    tasks=(fields.address,),
                )


RULES: Final = (
    Rule(
        "T13",
        "a task is marked as recording while it records",
        check_writing,
        "__sanitizer_cov_trace_pc()",
        eras="posted series of 2022 with kcov_writing",
        needs=frozenset({Feature.WRITING}),
        detail="One that was interrupted meanwhile and switched out has it on its stack.",
    ),
    Rule(
        "T14",
        "what a task traces data flow for is enabled for it, and has its area and size",
        check_dataflow,
        "kcov_dataflow's ioctl",
        eras="posted series of 2026 with kcov_dataflow in its own file",
        needs=frozenset({Feature.DATAFLOW}),
        detail="Inside a remote section of that device the area is another one. Nothing else of that device is looked at.",
    ),
)
