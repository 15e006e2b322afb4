# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the option of the kernel's configuration that builds a source file, in the Makefiles of its
tree. They are untrusted, and read as text.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import LimitError
from kcovdbg.input_file import read_input

_NAMES: Final = ("Kbuild", "Makefile")
# obj-$(CONFIG_X) += a.o b/, a-y := c.o, a-$(CONFIG_X) += d.o, a-objs := e.o
_RULE: Final = re.compile(r"([\w.-]+?)-(y|objs|\$[({](CONFIG_\w+)[)}])\s*[:+]?=\s*(.*)")
_CONDITION: Final = re.compile(r"(ifdef|ifndef|ifeq|ifneq)\b")
_END: Final = re.compile(r"endif\b")
# Makefiles of a kernel have some hundred lines.
_MOST_LINES: Final = 20_000
_MOST_STEPS: Final = 32


class BuildRule(NamedTuple):
    """What decides whether a file is built."""

    option: str | None
    """The option, None where a Makefile always builds the file."""


class _Rule(NamedTuple):
    target: str
    """``obj`` or ``lib``, or the object that the others are a part of."""
    option: str | None
    is_conditional: bool


class BuildOptions:
    """Finds options by the Makefiles of a tree.

    :param tree: its root, an absolute path without links.
    """

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._read_rules: Callable[[str], Mapping[str, Sequence[_Rule]]] = cache(self._parse)

    @classmethod
    def around(cls, path: Path | None, file: str) -> BuildOptions | None:
        """Return what finds options in the tree that a file was found in; None where its path does
        not end with its name in the tree.

        :param path: where it was found.
        :param file: its name in the tree.
        """
        if path is None or not str(path).endswith(f"/{file}"):
            return None
        root = Path(str(path).removesuffix(f"/{file}") or "/")
        return cls(root.resolve())

    def find(self, file: str) -> BuildRule | None:
        """Return what builds a file, None where the Makefiles do not say.

        It is the option of the innermost Makefile that has one: a directory's counts where the
        file's own line has none.

        :param file: relative to the root, without ``..``.
        """
        folder, name = posixpath.split(file)
        stem, suffix = posixpath.splitext(name)
        if suffix not in (".c", ".S", ".rs"):
            return None
        wanted = f"{stem}.o"
        is_known = False
        for _ in range(_MOST_STEPS):
            rules = self._read_rules(folder).get(wanted, ())
            if len(rules) != 1 or rules[0].is_conditional:
                # Not said, said twice, or said under a condition.
                return BuildRule(None) if is_known and not folder else None
            rule = rules[0]
            if rule.option is not None:
                return BuildRule(rule.option)
            is_known = True
            if rule.target not in ("obj", "lib"):
                wanted = f"{rule.target}.o"
            elif folder:
                folder, directory = posixpath.split(folder)
                wanted = f"{directory}/"
            else:
                break
        return BuildRule(None)

    def _parse(self, folder: str) -> Mapping[str, Sequence[_Rule]]:
        found: dict[str, list[_Rule]] = {}
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
                found.setdefault(word, []).append(_Rule(rule[1], rule[3], depth > 0))
        return found

    def _read_lines(self, folder: str) -> Iterator[str]:
        """Yield the lines of a directory's Makefile; those that are continued are one."""
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
