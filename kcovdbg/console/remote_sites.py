# SPDX-License-Identifier: LGPL-2.1-or-later
"""The calls of the kernel and its modules that announce remote handles, by their source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kcovdbg.abi.handle import START
from kcovdbg.console.context import Context
from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.model.remote import RemoteSite
from kcovdbg.symbols.remote_calls import CodeRange, RemoteCall
from kcovdbg.target.protocol import SourceLines


class RemoteSites(NamedTuple):
    """The sites of a kernel."""

    sites: tuple[RemoteSite, ...]
    """By file and line."""
    remarks: tuple[str, ...]
    """Lines on code that could not be searched."""


def find_remote_sites(context: Context) -> RemoteSites:
    """Return the sites of the kernel's image and of its loaded modules.

    :raises CapabilityError: when the kernel's image has no code that can be searched.
    """
    target, calls = context.target, context.kernel.remote_calls
    found = [_locate(context.kernel.lines, call, calls.symbol_of(call.back - 1), None) for call in calls.of_image]
    remarks: list[str] = []
    lines = context.kernel.lines
    for name, start, end in () if lines is None else lines.code_ranges():
        in_module, missing = calls.of_module(CodeRange(name, start, end), target.read)
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


def names_of(sites: Sequence[RemoteSite]) -> Iterator[str]:
    """Yield the functions that the sites are in: those of the source, and those whose code has them."""
    for site in sites:
        yield site.function
        if site.symbol is not None:
            yield strip_clone_suffix(site.symbol)
