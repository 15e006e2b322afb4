# SPDX-License-Identifier: LGPL-2.1-or-later
"""The modules in which traces of one build have records, by the traces' side files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from kcovdbg.abi.address import page_align, page_align_down
from kcovdbg.errors import CapabilityError
from kcovdbg.model.location import Frame, LoadedModule, ModuleMap
from kcovdbg.records.side_file import TraceHeader
from kcovdbg.symbols.coverage_points import PointKind, points_of_loaded
from kcovdbg.symbols.symbolizer import Fallback
from kcovdbg.target.target import SourceLines


class TraceModules(SourceLines):
    """The modules of one build, each at the address in the first trace that has records in it.

    :param headers: the contents of the traces' side files.
    :param files: files of modules with debug info, by build ID.
    :raises TargetError: when one of the files cannot be used.
    :raises CapabilityError: when drgn, which reads the files, is missing.
    """

    def __init__(self, headers: Iterable[TraceHeader], files: Mapping[str, str]) -> None:
        self.loaded = _choose_modules(
            module for header in headers for module in header.recorded_modules
        )
        """The modules, with addresses as KCOV records them."""
        self._map = ModuleMap(self.loaded)
        self._find_frames: Fallback = lambda _address: ()
        self._files = files
        if any(module.build_id in files for module in self.loaded):
            try:
                from kcovdbg.target.drgn.lines import frames_at, open_module_program
            except ImportError as error:
                problem = f"could not import drgn: {error}"
                raise CapabilityError(problem, hint="pip install drgn") from None
            self._find_frames = partial(frames_at, open_module_program(self.loaded, files))

    def find_points(self) -> Mapping[int, PointKind]:
        """Return the coverage points of the modules with known files, as KCOV records them."""
        points: dict[int, PointKind] = {}
        for module in self.loaded:
            path = self._files.get(module.build_id or "")
            if path is not None:
                points |= points_of_loaded(module, path)
        return points

    def loaded_modules(self) -> tuple[LoadedModule, ...]:
        """Return the modules."""
        return self.loaded

    def loaded_files(self) -> dict[str, str]:
        """Return the known files of the modules, by build ID."""
        known = {module.build_id for module in self.loaded}
        return {build_id: path for build_id, path in self._files.items() if build_id in known}

    def name_at(self, address: int) -> str | None:
        """Return the name of the module with an instruction, None if there is none."""
        found = self._map.find(address + 1)
        return None if found is None else found[0].name

    def may_hold(self, address: int) -> bool:
        """Return whether a module is at an address. Modules without records are unknown."""
        return self.name_at(address) is not None

    def has_function(self, name: str) -> bool:  # noqa: ARG002
        """Return True, as the modules' functions are unknown."""
        return True

    def module_files(self) -> Iterator[str]:
        """Yield the source files of all points in modules, some more than once."""
        for pc in self.find_points():
            yield from (frame.file for frame in self.frames_at(pc - 1) if frame.file is not None)

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the source location of an instruction, empty if it is unknown."""
        return self._find_frames(address)


def _choose_modules(modules: Iterable[LoadedModule]) -> tuple[LoadedModule, ...]:
    """Return each module once; move one that overlaps another past the end of all."""
    found: dict[tuple[str, str | None], LoadedModule] = {}
    for module in modules:
        if module.key in found or not module.sections:
            continue
        start, end = module.span
        spans = [other.span for other in found.values()]
        if any(start < other_end and other_start < end for other_start, other_end in spans):
            last = max(other_end for _, other_end in spans)
            module = module.shift(page_align(last) - page_align_down(start))
        found[module.key] = module
    return tuple(found.values())
