# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the text of source files on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

NOT_FOUND = "no source text: {file} is not in the source tree; --source-dir names one"
NO_TREE = "no source text: no source tree is known; --source-dir names one"


class SourceText(NamedTuple):
    """What is known of a source file."""

    path: Path | None
    lines: tuple[str, ...]
    """Without their line ends; line 1 is the first one. Empty where there is no text."""
    remark: str | None = None
    """Why there is no text."""

    def line(self, number: int | None) -> str | None:
        """Return a line, None where there is none of this number."""
        return self.lines[number - 1] if number is not None and 0 < number <= len(self.lines) else None


class SourceTree:
    """Source files by their names in debug info; each file is read once.

    Looked for, in this order: under each folder that the user named, after the user's substitutions, and where the kernel
    was built.

    :param folders: roots of source trees.
    :param build_directory: ``DW_AT_comp_dir``, what names in debug info are relative to.
    :param substitutions: pairs of path prefixes, old and new, as GDB's ``set substitute-path`` has them: the first that
        fits is applied to the absolute name.
    """

    def __init__(
        self,
        folders: Iterable[str | os.PathLike[str]] = (),
        *,
        build_directory: str | None = None,
        substitutions: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._folders = tuple(Path(folder) for folder in folders)
        self._build_directory = build_directory
        self._substitutions = tuple(substitutions)
        self._texts: dict[str, SourceText] = {}

    def find(self, file: str) -> Path | None:
        """Find a file.

        :param file: as in debug info, relative to the build root or absolute.
        """
        return next((path for path in self._candidates(file) if path.is_file()), None)

    def _candidates(self, file: str) -> Iterable[Path]:
        absolute = file if file.startswith("/") else None
        relative = file
        if self._build_directory:
            if absolute is None:
                absolute = os.path.normpath(os.path.join(self._build_directory, file))  # noqa: PTH118
            elif file.startswith(self._build_directory.rstrip("/") + "/"):
                relative = file[len(self._build_directory.rstrip("/")) + 1 :]
        if not relative.startswith("/"):
            for folder in self._folders:
                yield folder / relative
        if absolute is None:
            return
        for old, new in self._substitutions:
            prefix = old.rstrip("/")
            # Whole names only: /usr/src isn't a prefix of /usr/src2.
            if absolute == prefix or absolute.startswith(prefix + "/"):
                yield Path(new.rstrip("/") + absolute[len(prefix) :])
                break
        yield Path(absolute)

    def read(self, file: str | None) -> SourceText:
        """Read a file; never fails: without text, the remark says why.

        :param file: as in debug info; None where that has no name.
        """
        if file is None:
            return SourceText(None, (), "no source text: debug info names no file")
        text = self._texts.get(file)
        if text is None:
            text = self._texts[file] = self._read(file)
        return text

    def _read(self, file: str) -> SourceText:
        path = self.find(file)
        if path is None:
            has_tree = bool(self._folders) or bool(self._build_directory and Path(self._build_directory).is_dir())
            return SourceText(None, (), NOT_FOUND.format(file=file) if has_tree else NO_TREE)
        try:
            # Only newline ends a line for a compiler: form feeds occur in kernel sources.
            lines = path.read_text("utf-8", "replace").split("\n")
        except OSError as error:
            return SourceText(path, (), f"no source text: {path}: {error.strerror}")
        if lines[-1] == "":
            lines.pop()
        return SourceText(path, tuple(line.removesuffix("\r") for line in lines))
