# SPDX-License-Identifier: LGPL-2.1-or-later
"""The steps of a page that tells how to add something: new files, and changes as diffs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MADE = (".pytest_cache", ".ruff_cache", "__pycache__", ".venv", "build", "dist", "*.egg-info")
LARGE = (".git", ".hypothesis", ".mypy_cache", "golden", "lab", "bench", "fuzz")
# A path in backquotes and a colon, then the text of a new file.
NEW_FILE = re.compile(r"`([\w./-]+)`:\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DIFF = re.compile(r"^ *```diff\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def copy_tree(folder: Path, leave_out: tuple[str, ...] = LARGE) -> Path:
    """Return a copy of the source tree."""
    top = folder / "kcovdbg"
    shutil.copytree(ROOT, top, ignore=shutil.ignore_patterns(*MADE, *leave_out))
    return top


def created_files(page: Path) -> frozenset[str]:
    """Return the files that a page tells its reader to create."""
    return frozenset(match[1] for match in NEW_FILE.finditer(page.read_text()))


def follow(page: Path, top: Path) -> None:
    """Make the files and the changes that a page shows in a tree."""
    text = page.read_text()
    steps = 0
    for match in NEW_FILE.finditer(text):
        path = top / match[1]
        assert not path.exists(), path
        path.write_text(match[2])
        steps += 1
    for match in DIFF.finditer(text):
        steps += _apply(match[1], top)
    assert steps, f"{page} shows no steps"


def _apply(diff: str, top: Path) -> int:
    """Apply a diff whose hunks have no numbers; return how many hunks it has.

    The lines that a hunk keeps and removes must stand in the file once.
    """
    heading, *hunks = re.split(r"^ *@@\n", diff, flags=re.MULTILINE)
    path = top / heading.strip().removeprefix("--- ")
    for hunk in hunks:
        lines = hunk.splitlines()
        indent = min(len(line) - len(line.lstrip()) for line in lines if line.lstrip()[:1] in "+-")
        lines = [line[indent:] for line in lines]
        before = "\n".join(line[1:] for line in lines if line[:1] != "+")
        after = "\n".join(line[1:] for line in lines if line[:1] != "-")
        text = path.read_text()
        assert text.count(f"{before}\n") == 1, f"{path}: {before}"
        path.write_text(text.replace(f"{before}\n", f"{after}\n"))
    return len(hunks)


def run_in(top: Path, *words: str) -> str:
    """Run Python on a tree; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(top), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=top,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
