# SPDX-License-Identifier: LGPL-2.1-or-later
"""The target of a kernel: what the user gives for it, and what is read once it is open."""

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
    """What the user gives for a kernel."""

    open_target: Callable[[], Target] | None = None
    """Opens it when it is first needed; None where the user gave none."""
    is_named: bool = True
    """Whether the user named it; otherwise it is the running one, if a command needs it."""
    table_file: str | None = None
    """A location table of it that was built elsewhere."""
    tables: Sequence[str] = ()
    """Location tables of any builds that were built elsewhere, in place of ``table_file``."""
    image: str | None = None
    """The vmlinux that the table was made of, where the target is a table."""
    source_folders: Sequence[str] = ()
    """Roots of source trees that the user named."""
    substitutions: Sequence[tuple[str, str]] = ()
    """Prefixes of source paths, as debug info names them and as they are here."""
    reads_build_directory: bool = True
    """Whether source text is also read where the kernel was built, which is for its debug info to
    say.
    """


class KernelMemory:
    """The target of a kernel, with what KCOV looks like in its memory."""

    def __init__(self, options: KernelOptions) -> None:
        self._options = options
        self._opened: Target | None = None

    @cached_property
    def target(self) -> Target:
        """The kernel, opened when first asked for.

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
        """The kernel, None where there is none or it cannot be opened."""
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
        """The files that the target reads, none before it is open."""
        return () if self._opened is None else self._opened.files
