# SPDX-License-Identifier: LGPL-2.1-or-later
"""Source files on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

NOT_FOUND = "no source text: {file} is not in the source tree; --source-dir names one"
NO_TREE = "no source text: no source tree is known; --source-dir names one"


class SourceText(NamedTuple):
    """The text of a source file, or why there is none."""

    path: Path | None
    lines: tuple[str, ...]
    """Without line ends; the first is line 1. Empty when there is no text."""
    remark: str | None = None
    """Why there is no text."""

    def line(self, number: int | None) -> str | None:
        """Return a line by its number, None when there is no such line."""
        return self.lines[number - 1] if number is not None and 0 < number <= len(self.lines) else None


class SourceTree:
    """Source files by their names in debug info; each file is read once.

    A file is looked up under each folder given by the user, then after substitutions, then where the kernel was built.

    :param folders: roots of source trees.
    :param build_directory: ``DW_AT_comp_dir``, which names in debug info are relative to.
    :param substitutions: pairs of path prefixes, old and new, as for GDB's ``set substitute-path``; the first that matches is
        applied to the absolute name.
    :param is_confined: read only files that are, after links, below a folder or the new prefix of a substitution: debug info
        may name any file of this machine.
    """

    def __init__(
        self,
        folders: Iterable[str | os.PathLike[str]] = (),
        *,
        build_directory: str | None = None,
        substitutions: Sequence[tuple[str, str]] = (),
        is_confined: bool = False,
    ) -> None:
        self._folders = tuple(Path(folder) for folder in folders)
        self._build_directory = build_directory
        self._substitutions = tuple(substitutions)
        roots = (*self._folders, *(Path(new) for _, new in self._substitutions))
        self._roots = tuple(Path(os.path.realpath(root)) for root in roots) if is_confined else None
        self._texts: dict[str, SourceText] = {}
        self._paths: dict[Path, None] = {}

    @property
    def paths(self) -> Sequence[Path]:
        """The paths of the files read so far."""
        return list(self._paths)

    def has_text(self, file: str) -> bool:
        """Return whether a file is found, can be read and is not empty; its text is not kept.

        :param file: its name in debug info.
        """
        path = self.find(file)
        if path is None:
            return False
        self._paths[path] = None
        try:
            with path.open("rb") as stream:
                return bool(stream.read(1))
        except OSError:
            return False

    def find(self, file: str) -> Path | None:
        """Return the path of a file, None when it is not found.

        :param file: its name in debug info, relative to the build root or absolute.
        """
        return next((path for path in self._candidates(file) if path.is_file() and self._is_allowed(path)), None)

    def _is_allowed(self, path: Path) -> bool:
        if self._roots is None:
            return True
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(root) for root in self._roots)

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
            # Complete names only: /usr/src is not a prefix of /usr/src2.
            if absolute == prefix or absolute.startswith(prefix + "/"):
                yield Path(new.rstrip("/") + absolute[len(prefix) :])
                break
        yield Path(absolute)

    def read(self, file: str | None) -> SourceText:
        """Return the text of a file, or a remark on why there is none.

        :param file: its name in debug info; None when that has none.
        """
        if file is None:
            return SourceText(None, (), "no source text: no file name in debug info")
        text = self._texts.get(file)
        if text is None:
            text = self._texts[file] = self.read_once(file)
        return text

    def read_once(self, file: str) -> SourceText:
        """Return the text of a file as :meth:`read` does, without keeping it: a kernel's files fill a gigabyte."""
        path = self.find(file)
        if path is None:
            has_tree = bool(self._folders) or bool(self._build_directory and Path(self._build_directory).is_dir())
            return SourceText(None, (), NOT_FOUND.format(file=file) if has_tree else NO_TREE)
        self._paths[path] = None
        try:
            # Lines end at newlines only, in any convention, as for a compiler: kernel sources have form feeds.
            lines = path.read_text("utf-8", "replace").split("\n")
        except OSError as error:
            return SourceText(path, (), f"no source text: {path}: {error.strerror}")
        if lines[-1] == "":
            lines.pop()
        return SourceText(path, tuple(lines))
