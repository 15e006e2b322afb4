# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's options for a kernel, and its target, which is opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.walk.layout import Layout, detect_layout

if TYPE_CHECKING:
    from kcovdbg.target.target import Target


@dataclass(frozen=True)
class KernelOptions:
    """The user's options for a kernel."""

    open_target: Callable[[], Target] | None = None
    """Opens the kernel's target; None if the user gave no kernel."""
    is_named: bool = True
    """Whether the user named it. If not, it is the running kernel, which a command may need."""
    table_file: str | None = None
    """The kernel's location table, if that was built elsewhere."""
    tables: Sequence[str] = ()
    """Location tables of various builds that were built elsewhere, instead of ``table_file``."""
    image: str | None = None
    """If the target is a table, the vmlinux of the table."""
    source_folders: Sequence[str] = ()
    """Roots of source trees that the user named."""
    substitutions: Sequence[tuple[str, str]] = ()
    """Prefixes of source paths: in debug info, and on this machine."""
    reads_build_directory: bool = True
    """Whether source text is also read from the build directory, which debug info names."""


class KernelMemory:
    """The target of a kernel, and the layout of its KCOV."""

    def __init__(self, options: KernelOptions) -> None:
        self._options = options
        self._opened: Target | None = None

    @cached_property
    def target(self) -> Target:
        """The target, which is opened on first use.

        :raises TargetError: when it cannot be opened.
        """
        if self._options.open_target is None:
            raise TargetError(
                "no target", hint="kcovdbg -c VMCORE -s VMLINUX; kcovdbg --help lists the others"
            )
        self._opened = self._options.open_target()
        return self._opened

    @cached_property
    def optional_target(self) -> Target | None:
        """The target, None if there is none or it cannot be opened."""
        if self._error is not None:
            return None
        return self.target

    @cached_property
    def _error(self) -> KcovdbgError | None:
        try:
            _ = self.target
        except KcovdbgError as error:
            return error
        return None

    @property
    def problem(self) -> str:
        """Why there is no :attr:`optional_target`."""
        return str(self._error)

    @cached_property
    def layout(self) -> Layout:
        """The layout of the kernel's KCOV.

        :raises TargetError: when it has none.
        """
        return detect_layout(self.target)

    @property
    def kaslr_offset(self) -> int:
        """The KASLR offset in bytes, 0 without a kernel."""
        target = self.optional_target
        return 0 if target is None else target.kaslr_offset

    @property
    def files(self) -> Iterable[str]:
        """The files of the target, empty before it is open."""
        return () if self._opened is None else self._opened.files
