# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is found in a kernel's code: the coverage points of its modules, and the calls that announce remote handles."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kcovdbg.abi.handle import START
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.errors import TargetError
from kcovdbg.model.location import LoadedModule
from kcovdbg.model.remote import RemoteSite
from kcovdbg.records.pc_convention import PointSet, list_points
from kcovdbg.symbols.coverage_points import points_of_loaded
from kcovdbg.target.protocol import SourceLines, Target

if TYPE_CHECKING:
    from kcovdbg.symbols.remote_calls import RemoteCall


def find_module_sets(modules: Iterable[LoadedModule], paths: Mapping[str, str]) -> Iterator[PointSet]:
    """Iterate over the coverage points of modules whose files are at hand.

    :param modules: with addresses as KCOV records them.
    :param paths: of their files, by build ID.
    """
    for module in modules:
        path = paths.get(module.build_id or "")
        if path is not None and module.sections:
            # Points of a file that cannot be read are unknown.
            with contextlib.suppress(TargetError):
                yield list_points(points_of_loaded(module, path), module.span, module.name)


class RemoteSites(NamedTuple):
    """The sites of a kernel."""

    sites: tuple[RemoteSite, ...]
    """By file and line."""
    remarks: tuple[str, ...]
    """Lines on code that could not be searched."""


def find_remote_sites(target: Target, lines: SourceLines | None, code: str | None) -> RemoteSites:
    """Return the sites of a kernel's image and of its loaded modules.

    :param code: path of its stripped image, None where that of ``lines`` has the code.
    :raises CapabilityError: when the kernel's image has no code that can be searched.
    """
    from kcovdbg.symbols.remote_calls import RemoteCalls

    calls = RemoteCalls(None if lines is None else lines.image, target.build_id, target.kaslr_offset, code=code)
    found = [_locate(lines, call, calls.symbol_of(call.back - 1), None) for call in calls.of_image]
    remarks: list[str] = []
    for name, start, end in () if lines is None else lines.code_ranges():
        in_module, missing = calls.of_module(start, end, target)
        found += [_locate(lines, call, target.symbol_name(call.back - 1), name) for call in in_module]
        if missing:
            pages = "1 page" if missing == 1 else f"{missing} pages"
            remarks.append(f"module {name}: {pages} of its code could not be read, and not searched")
    sites = [site for site in found if not site.function.startswith(START)]
    return RemoteSites(tuple(sorted(sites, key=lambda site: (site.file or "", site.line or 0, site.address))), tuple(remarks))


def _locate(lines: SourceLines | None, call: RemoteCall, symbol: str | None, module: str | None) -> RemoteSite:
    """Return the site of a call: the innermost function that is no wrapper."""
    frames = () if lines is None else tuple(lines.frames_at(call.back - 1))
    wrapper = call.name
    errors: tuple[str, ...] = ()
    for frame in frames:
        if not (frame.function or "").startswith(START):
            if frame.line is None:
                errors = ("the line of its call is unknown",)
            return RemoteSite(
                call.back, demangle(frame.function or symbol or "?"), symbol, wrapper, frame.file, frame.line, module, errors
            )
        wrapper = frame.function or wrapper
    return RemoteSite(call.back, symbol or "?", symbol, wrapper, None, None, module, ("the debug info has no line for it",))
