# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the option of the kernel's configuration that builds a source file, in the Makefiles of its
tree. They are untrusted, and read as text.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import LimitError
from kcovdbg.input_file import is_file, read_input

_NAMES: Final = ("Kbuild", "Makefile")
# obj-$(CONFIG_X) += a.o b/, a-y := c.o, a-$(CONFIG_X) += d.o, a-objs := e.o
_RULE: Final = re.compile(r"([\w.-]+?)-(y|objs|\$[({](CONFIG_\w+)[)}])\s*[:+]?=\s*(.*)")
_CONDITION: Final = re.compile(r"(ifdef|ifndef|ifeq|ifneq)\b")
_END: Final = re.compile(r"endif\b")
# Makefiles of a kernel have some hundred lines.
_MOST_LINES: Final = 20_000
_MOST_STEPS: Final = 32


class BuildRule(NamedTuple):
    """The rule by which a file is built."""

    option: str | None
    """The option that builds it; None if a Makefile always builds it."""


class _MakefileRule(NamedTuple):
    """An assignment of a Makefile that names an object or a directory."""

    target: str
    """``obj`` or ``lib``, or the name without suffix of the object that it is linked into."""
    option: str | None
    is_conditional: bool
    """Whether it is between ``ifdef`` and ``endif``."""


class BuildOptions:
    """The options in the Makefiles of a tree.

    :param tree: its root, an absolute path without links.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._rules: dict[str, Mapping[str, Sequence[_MakefileRule]]] = {}

    @classmethod
    def around(cls, path: Path | None, file: str) -> BuildOptions | None:
        """Return the options of the tree that has a file; None if the path of the file does not end
        with its name in the tree.

        :param path: the path of the file.
        :param file: its name in the tree.
        """
        if path is None or not str(path).endswith(f"/{file}"):
            return None
        root = Path(str(path).removesuffix(f"/{file}") or "/")
        return cls(root.resolve())

    def lacks(self, file: str) -> bool:
        """Return whether the tree has a Makefile, but lacks a file.

        :param file: relative to the root, without ``..``.
        """
        return is_file(self._tree / "Makefile") and not is_file(self._tree / file)

    def find(self, file: str) -> BuildRule | None:
        """Return the rule by which a file is built; None if the Makefiles do not show it.

        If the line of the file has no option, the option of the nearest directory counts.

        :param file: relative to the root, without ``..``.
        """
        folder, name = posixpath.split(file)
        stem, suffix = posixpath.splitext(name)
        if suffix not in (".c", ".S", ".rs"):
            return None
        wanted = f"{stem}.o"
        for step in range(_MOST_STEPS):
            rules = self._read_rules(folder).get(wanted, ())
            is_said = len(rules) == 1 and not rules[0].is_conditional
            if not is_said and step and not folder:
                # The root's Makefile lists directories in other forms, and always builds them.
                return BuildRule(None)
            if not is_said:
                return None
            rule = rules[0]
            if rule.option is not None:
                return BuildRule(rule.option)
            if rule.target not in ("obj", "lib"):
                wanted = f"{rule.target}.o"
            elif folder:
                folder, directory = posixpath.split(folder)
                wanted = f"{directory}/"
            else:
                return BuildRule(None)
        return None

    def _read_rules(self, folder: str) -> Mapping[str, Sequence[_MakefileRule]]:
        """Return the rules of a directory's Makefile, by object or directory."""
        if folder not in self._rules:
            self._rules[folder] = self._parse(folder)
        return self._rules[folder]

    def _parse(self, folder: str) -> Mapping[str, Sequence[_MakefileRule]]:
        found: defaultdict[str, list[_MakefileRule]] = defaultdict(list)
        depth = 0
        for line in self._read_lines(folder):
            text = line.partition("#")[0].strip()
            if _CONDITION.match(text):
                depth += 1
            elif _END.match(text):
                depth = max(depth - 1, 0)
            rule = _RULE.match(text)
            if rule is None:
                continue
            for word in rule[4].split():
                found[word].append(_MakefileRule(rule[1], rule[3], depth > 0))
        return found

    def _read_lines(self, folder: str) -> Iterator[str]:
        """Yield the lines of a directory's Makefile; a line that is continued is joined."""
        for name in _NAMES:
            try:
                data = read_input(self._tree / folder / name, folder=self._tree)
            except (OSError, ValueError, LimitError):
                continue
            lines = data.decode("utf-8", "replace").split("\n")[:_MOST_LINES]
            joined = ""
            for line in lines:
                if line.endswith("\\"):
                    joined += line[:-1] + " "
                    continue
                yield joined + line
                joined = ""
            return
