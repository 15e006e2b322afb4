# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds and reads source files on this machine by their names in debug info."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import LimitError
from kcovdbg.input_file import is_file, is_folder, is_link, open_input, read_input
from kcovdbg.user_folder import is_home

NOT_FOUND = "no source text: {file} is not in the source tree; --source-dir names one"
NO_FOLDER = "no source text: there is no directory {folder}; --source-dir names the source tree"
OUTSIDE = (
    "no source text: {file} is outside the source trees; if you trust the debug info: --source-dir "
    "{folder}"
)
NO_SOURCE = "no source text: {file} has not the name of a source file"
NO_TREE = "no source text: no source tree is known; --source-dir names one"

# The suffixes of files for compilers and assemblers, and of files in #line directives.
_SUFFIXES: Final = frozenset(
    ".asm .c .cc .cpp .cxx .def .h .hh .hpp .hxx .inc .inl .ipp .l .lds .ll .rs .s .y .yy".split()
)


class SourceText(NamedTuple):
    """The text of a source file, or why there is none."""

    path: Path | None
    lines: tuple[str, ...]
    """Without line ends; the first is line 1. Empty when there is no text."""
    remark: str | None = None
    """Why there is no text."""

    def line(self, number: int | None) -> str | None:
        """Return a line by its number, None when there is no such line."""
        if number is None or not 0 < number <= len(self.lines):
            return None
        return self.lines[number - 1]


class SourceTree:
    """Source files by their names in debug info; each file is read once.

    A file is looked up below each folder that the user gave, then after substitutions, then in the
    build directory. Debug info may name any file of this machine. So a file is read only if it has
    the name of a source file and, after links are followed, is below such a folder, below the new
    prefix of a substitution, or below the build directory if the image lies in that.

    :param folders: roots of source trees.
    :param build_directory: ``DW_AT_comp_dir``, to which names in debug info are relative.
    :param image: path of the kernel image; None to read nothing in the build directory.
    :param substitutions: pairs of path prefixes, old and new, as for GDB's ``set substitute-path``;
        the first that matches is applied to the absolute name.
    """

    def __init__(
        self,
        folders: Iterable[str | os.PathLike[str]] = (),
        *,
        build_directory: str | None = None,
        image: str | None = None,
        substitutions: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._folders = tuple(Path(folder) for folder in folders)
        self._build_directory = build_directory
        self._substitutions = tuple(substitutions)
        self._roots = [
            *map(_resolve, self._folders),
            *(_resolve(new or "/") for _, new in self._substitutions),
        ]
        if (
            image is not None
            and build_directory is not None
            and _is_built_in(image, build_directory)
        ):
            self._roots.append(Path(build_directory))
        self._texts: dict[str, SourceText] = {}
        self._places: dict[str, tuple[Path, Path] | None] = {}
        self._resolve_folder = cache(_resolve)
        self._paths: dict[Path, None] = {}

    @property
    def paths(self) -> Sequence[Path]:
        """The paths of the files read so far."""
        return list(self._paths)

    def has_text(self, file: str) -> bool:
        """Return whether a file is found, can be read and is not empty; its text is not kept.

        :param file: its name in debug info.
        """
        found = self._find(file)
        if found is None:
            return False
        path, root = found
        self._paths[path] = None
        try:
            with open_input(path, folder=root) as stream:
                return bool(stream.read(1))
        except OSError:
            return False

    def find(self, file: str) -> Path | None:
        """Return the path of a file, None when it is not found.

        :param file: its name in debug info, relative to the build root or absolute.
        """
        found = self._find(file)
        return None if found is None else found[0]

    def _find(self, file: str) -> tuple[Path, Path] | None:
        """Return the path of a file, and its root; None when it is not found."""
        if file not in self._places:
            self._places[file] = self._search(file)
        return self._places[file]

    def _search(self, file: str) -> tuple[Path, Path] | None:
        if not _is_source_name(file):
            return None
        for path in map(Path, filter(is_file, self._candidates(file))):
            root = self._root_of(path)
            if root is not None:
                return path, root
        return None

    def _root_of(self, path: Path) -> Path | None:
        """Return the root that a file is below after links are followed, None if there is none."""
        try:
            # Folders are few: each is resolved once. A file is resolved only if it is a link.
            real = self._resolve_folder(path.parent) / path.name
            if path.name == ".." or is_link(real):
                real = _resolve(path)
                if not _is_source_name(real.name):
                    return None
        except ValueError:
            # A null character.
            return None
        for root in self._roots:
            if real.is_relative_to(root):
                return root
        return None

    def _candidates(self, file: str) -> Iterable[str]:
        absolute = file if file.startswith("/") else None
        relative = file
        if self._build_directory:
            # A kernel has thousands of files, and making a Path takes longer than finding a file.
            prefix = self._build_directory.rstrip("/") + "/"
            if absolute is None:
                absolute = os.path.normpath(prefix + file)
            elif file.startswith(prefix):
                relative = file.removeprefix(prefix)
        if not relative.startswith("/"):
            for folder in self._folders:
                yield str(folder / relative)
        if absolute is None:
            return
        for old, new in self._substitutions:
            prefix = old.rstrip("/")
            # Complete names only: /usr/src is not a prefix of /usr/src2.
            if absolute == prefix or absolute.startswith(prefix + "/"):
                yield new.rstrip("/") + absolute[len(prefix) :]
                break
        yield absolute

    def read(self, file: str | None) -> SourceText:
        """Return the text of a file, or a remark on why there is none.

        :param file: its name in debug info; None when debug info has no name.
        """
        if file is None:
            return SourceText(None, (), "no source text: no file name in debug info")
        text = self._texts.get(file)
        if text is None:
            text = self._texts[file] = self.read_once(file)
        return text

    def read_once(self, file: str) -> SourceText:
        """Return the text of a file as :meth:`read` does, without keeping it: a kernel's files fill
        a gigabyte.
        """
        found = self._find(file)
        if found is None:
            return SourceText(None, (), self._explain_missing(file))
        path, root = found
        self._paths[path] = None
        try:
            # Lines end at newlines only, in any convention, as for a compiler: kernel sources have
            # form feeds.
            text = read_input(path, folder=root).decode("utf-8", "replace")
            lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        except OSError as error:
            return SourceText(path, (), f"no source text: {path}: {error.strerror}")
        except LimitError as error:
            return SourceText(path, (), f"no source text: {error}; {error.hint}")
        if lines[-1] == "":
            lines.pop()
        return SourceText(path, tuple(lines))

    def _explain_missing(self, file: str) -> str:
        if not _is_source_name(file):
            return NO_SOURCE.format(file=file)
        absent = [folder for folder in self._folders if not is_folder(folder)]
        if absent:
            return NO_FOLDER.format(folder=absent[0])
        candidates = map(Path, self._candidates(file))
        if self._roots and any(self._root_of(path) is not None for path in candidates):
            return NOT_FOUND.format(file=file)
        build = self._build_directory
        if build and _is_literal(build) and Path(build) not in self._roots:
            return OUTSIDE.format(file=file, folder=build)
        return NOT_FOUND.format(file=file) if self._roots else NO_TREE


def _is_source_name(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES  # noqa: PTH122


def _is_literal(folder: str) -> bool:
    """Return whether a path leads to a folder without a link, and not in /proc, where a path has
    another meaning in each process.
    """
    try:
        is_own = is_folder(folder) and os.path.realpath(folder) == folder
    except ValueError:
        return False
    return is_own and not Path(folder).is_relative_to("/proc")


def _is_built_in(image: str, folder: str) -> bool:
    """Return whether an image lies in the folder in which it claims to have been built.

    The image of somebody else may claim any folder, also a home directory, or a link to one, of
    which its author need not know the path. An image that was unpacked to a temporary file has a
    path in /proc.
    """
    if image.startswith("/proc/") or not _is_literal(folder) or is_home(Path(folder)):
        return False
    return _resolve(image).parent == Path(folder)


def _resolve(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path))
