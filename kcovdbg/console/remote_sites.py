# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sites of a kernel: places that announce a remote handle, with their source lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, cast

from kcovdbg.abi.handle import START
from kcovdbg.console.context import Context
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.model.location import Frame
from kcovdbg.model.remote import RemoteSite
from kcovdbg.symbols.remote_calls import CodeRange, RemoteCall
from kcovdbg.target.protocol import Target


class _FrameSource(Protocol):
    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the frames at an address in the running kernel; empty where debug info lacks it."""


class _ModuleSource(Protocol):
    def code_ranges(self) -> Sequence[tuple[str, int, int]]:
        """Return the code of loaded modules: name, start, end."""


class RemoteSites(NamedTuple):
    """The sites of a kernel."""

    sites: tuple[RemoteSite, ...]
    """By file and line."""
    remarks: tuple[str, ...]
    """What could not be searched."""


def find_remote_sites(context: Context) -> RemoteSites:
    """Return the sites of the kernel's image and of its loaded modules.

    :raises CapabilityError: when the kernel's image has no code that can be searched.
    """
    target, calls = context.target, context.workspace.remote_calls
    found = [_locate(target, call, calls.symbol_of(call.back - 1), None) for call in calls.of_image]
    remarks: list[str] = []
    lines = getattr(target, "lines", None)
    if not hasattr(lines, "code_ranges"):
        remarks.append("modules are not searched: this debugger does not know where their code is")
    else:
        for name, start, end in cast("_ModuleSource", lines).code_ranges():
            in_module, missing = calls.of_module(CodeRange(name, start, end), target.read)
            found += [_locate(target, call, target.symbol_name(call.back - 1), name) for call in in_module]
            if missing:
                pages = "1 page" if missing == 1 else f"{missing} pages"
                remarks.append(f"module {name}: {pages} of its code could not be read, and not searched")
    sites = [site for site in found if not site.function.startswith(START)]
    return RemoteSites(tuple(sorted(sites, key=lambda site: (site.file or "", site.line or 0, site.address))), tuple(remarks))


def _locate(target: Target, call: RemoteCall, symbol: str | None, module: str | None) -> RemoteSite:
    """Return the site of a call: the innermost function that is no wrapper."""
    source = cast("_FrameSource", getattr(target, "lines", target))
    frames = tuple(source.frames_at(call.back - 1))
    wrapper = call.name
    errors: tuple[str, ...] = ()
    for frame in frames:
        if not (frame.function or "").startswith(START):
            if frame.line is None:
                errors = ("the line of its call is unknown",)
            return RemoteSite(
                call.back, frame.function or symbol or "?", symbol, wrapper, frame.file, frame.line, module, errors
            )
        wrapper = frame.function or wrapper
    return RemoteSite(call.back, symbol or "?", symbol, wrapper, None, None, module, ("the debug info has no line for it",))


def names_of(sites: Sequence[RemoteSite]) -> Iterator[str]:
    """Yield the functions that the sites are in: those of the source, and those whose code has them."""
    for site in sites:
        yield site.function
        if site.symbol is not None:
            yield strip_clone_suffix(site.symbol)
