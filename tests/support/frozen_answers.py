# SPDX-License-Identifier: LGPL-2.1-or-later
"""``--json`` of the commands on kept dumps: ``python -m tests.support.frozen_answers`` writes what
it is now.

They say that an answer changed, not which one is right: other tests compare answers with the guest,
GDB and addr2line. A change of the code that changes an answer on purpose comes with the new one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import zstandard

from tests.lab.kcovdbg_run import run_lines

ROOT: Final = Path(__file__).parents[1] / "golden"
ANSWERS: Final = ROOT / "answers"
_OF_THE_STATE: Final = (
    "info",
    "tasks -a",
    "objects",
    "remote",
    "areas",
    "saved",
    "check",
    "last",
    "sites",
)
_OF_A_BUFFER: Final = ("buffer {0}", "top {0}", "top {0} --by file", "trace {0}", "source {0}")
_OF_TWO: Final = ("diff {0} {1}", "diff {0} {1} --ordered")
# Buffers are shown of this many tasks: those with the fewest records, of each mode.
_TASKS_OF_A_MODE: Final = 2

Answers = Mapping[str, Any]
"""The rows by command line; None for a line that fails."""


class KeptDump(NamedTuple):
    """A dump in the repository."""

    name: str
    target: Sequence[str | Path]

    @property
    def path(self) -> Path:
        """The file of its answers."""
        return ANSWERS / f"{self.name}.json.zst"


def list_kept_dumps() -> list[KeptDump]:
    """Return the demo and the slices of all generations."""
    folders = sorted(path.parent for path in ROOT.glob("generations/*/slice.zst"))
    slices = [
        KeptDump(folder.name, ["-c", folder / "slice.zst", "-s", folder / "vmlinux.zst"])
        for folder in folders
    ]
    return [KeptDump("demo", ["--demo"]), *slices]


def ask(dump: KeptDump) -> Answers:
    """Return what each command answers on a dump.

    The user's cache may have a table of the same build that was made from more debug info than the
    dump comes with.
    """
    with tempfile.TemporaryDirectory() as cache:
        answers = dict(_run(dump, _OF_THE_STATE, cache))
        return answers | dict(_run(dump, list(_list_lines(answers)), cache))


def read_answers(dump: KeptDump) -> Answers:
    """Return the answers that are kept."""
    answers: Answers = json.loads(zstandard.decompress(dump.path.read_bytes()))
    return answers


def find_changes(kept: object, found: object, path: str) -> Iterator[str]:
    """Yield what differs, by command, row and key."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in kept.keys() | found.keys():
            yield from find_changes(kept.get(key), found.get(key), f"{path} {key}")
    elif isinstance(kept, list) and isinstance(found, list) and len(kept) == len(found):
        for number, (left, right) in enumerate(zip(kept, found, strict=True)):
            yield from find_changes(left, right, f"{path}[{number}]")
    elif isinstance(kept, list) and isinstance(found, list):
        yield f"{path}: {len(kept)} -> {len(found)} rows"
    elif kept != found:
        yield f"{path}: {kept!r} -> {found!r}"


def _run(dump: KeptDump, lines: Sequence[str], cache: str) -> Iterator[tuple[str, Any]]:
    for line, text in zip(
        lines,
        run_lines(dump.target, *(f"{line} --json" for line in lines), cache=cache),
        strict=True,
    ):
        yield line, _without_names(json.loads(text)) if text else None


def _list_lines(answers: Answers) -> Iterator[str]:
    """Yield the command lines that depend on the dump's tasks."""
    tasks = [row for row in answers["tasks -a"] if row["count"]]
    tasks.sort(key=lambda row: (row["count"], row["pid"]))
    chosen: list[str] = []
    for mode in sorted({row["kcov_mode"] for row in tasks}):
        chosen += [str(row["pid"]) for row in tasks if row["kcov_mode"] == mode][:_TASKS_OF_A_MODE]
    for task in chosen:
        yield from (line.format(task) for line in _OF_A_BUFFER)
    for pair in itertools.pairwise(chosen):
        yield from (line.format(*pair) for line in _OF_TWO)
    yield from (
        f"why {row['pid']}" for row in answers["tasks -a"] if row["kcov"] not in (None, "0x0")
    )
    yield from (f"why {row['handle']}" for row in answers["remote"] or ())
    functions = sorted({row["function"] for row in answers["sites"] or () if row["function"]})[:2]
    yield from (f"points {function} {task}" for function in functions for task in chosen[:1])


def _without_names(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop where the dump lies."""
    return [{key: value for key, value in row.items() if key != "target"} for row in rows]


def main() -> int:
    argparse.ArgumentParser(description="Write the answers about kept dumps anew.").parse_args()
    ANSWERS.mkdir(exist_ok=True)
    dumps = list_kept_dumps()
    with ThreadPoolExecutor(2) as pool:
        for dump, answers in zip(dumps, pool.map(ask, dumps), strict=True):
            text = json.dumps(answers, indent=0)
            dump.path.write_bytes(
                zstandard.ZstdCompressor(19, write_content_size=True).compress(text.encode())
            )
            print(dump.name, len(answers), dump.path.stat().st_size)
    return 0


if __name__ == "__main__":
    sys.exit(main())
