# SPDX-License-Identifier: LGPL-2.1-or-later
"""``info``: which kernel this is and which KCOV it has."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from kcovdbg.abi.era import find_era
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.generation import Generation
from kcovdbg.render.column import Column
from kcovdbg.render.kind import BOOL, LIST, WORD
from kcovdbg.render.renderable import Record
from kcovdbg.target import Target


@dataclass(frozen=True, slots=True)
class _Info:
    target: Target
    generation: Generation | None
    errors: tuple[str, ...]


def _era_text(info: _Info) -> str | None:
    if info.generation is None:
        return None
    era = find_era(info.generation.era)
    return info.generation.era if era is None else f"{era.name} ({era.kernels}): {era.summary}"


_COLUMNS = (
    Column("target", title="target", value=lambda info: info.target.name),
    Column("release", title="release", value=lambda info: info.target.release),
    Column("machine", title="machine", value=lambda info: info.target.machine),
    Column("build_id", title="build id", value=lambda info: info.target.build_id),
    Column("kaslr_offset", WORD, title="KASLR offset", value=lambda info: info.target.kaslr_offset),
    Column(
        "generation",
        title="KCOV generation",
        value=lambda info: info.generation and info.generation.era,
        text=_era_text,
    ),
    Column(
        "variants",
        LIST,
        title="variants",
        value=lambda info: info.generation and info.generation.variants,
        hide_empty=True,
    ),
    Column("features", LIST, title="features", value=lambda info: info.generation and sorted(info.generation.features)),
    Column("live", BOOL, title="live", value=lambda info: info.target.live),
)


def _run(context: Context, args: Namespace) -> Record:  # noqa: ARG001
    target = context.target
    errors: list[str] = []
    generation = None
    try:
        generation = context.layout.generation
    except KcovdbgError as error:
        # The rest is as true of a kernel without KCOV.
        errors.append(str(error))
    else:
        errors += [f"{name} is new to kcovdbg: it may mean more than is shown" for name in generation.unrecognised]
        errors += [f"{name} isn't in the debug info: what it would tell isn't shown" for name in generation.missing]
    # How it was opened is no error, and differs between a dump and its slice.
    return Record(_COLUMNS, _Info(target, generation, tuple(errors)), remarks=target.notes, errors=lambda info: info.errors)


INFO = Command(
    name="info",
    summary="the target, its kernel, and which KCOV it has",
    run=_run,
    description=(
        "The generation is recognised by the members of KCOV's structures, never by the kernel's release: stable kernels carry "
        "newer layouts than newer releases. What is below the values is what could not be read or is not known."
    ),
    examples=(Example("info", "what am I looking at?"), Example("info --json", "the same for a script")),
)
