# SPDX-License-Identifier: LGPL-2.1-or-later
"""``sym -`` on what a kernel prints: every initcall and a crash, against addr2line on the same
words.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.lab.conftest import Booter
from tests.lab.guest import Machine
from tests.lab.kcovdbg_run import run_kcovdbg
from tests.support.programs import addr2line, output_of

WORD = re.compile(r"([\w.$]+)\+0x([0-9a-f]+)/0x([0-9a-f]+)(?: \[(\w+)\])?")
# In front of the address of an instruction.
EXACT = re.compile(r"(RIP: 0010:|WARNING: .* at \S+ )$")
# A kernel that prints fewer was not told to.
LEAST = 300


class Printed(NamedTuple):
    """A word of the log."""

    name: str
    offset: int
    size: int
    is_exact: bool


def find_words(log: str) -> Iterator[Printed]:
    """Yield the words about the kernel's image; those of modules have other files."""
    for line in log.splitlines():
        for match in WORD.finditer(line):
            if match[4] is None:
                offset = int(match[2], 16)
                yield Printed(
                    match[1],
                    offset,
                    int(match[3], 16),
                    not offset or EXACT.search(line[: match.start()]) is not None,
                )


def find_starts(image: Path) -> dict[tuple[str, int], int]:
    """Return the address of each symbol of code by its name and the distance to the next one, by
    nm.
    """
    rows = [line.split() for line in output_of("nm", "-n", image).splitlines()]
    code = [(int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "tTwW"]
    after = dict(itertools.pairwise(sorted({address for address, _ in code})))
    return {(name, after[address] - address): address for address, name in code if address in after}


def test_words_of_a_boot_and_a_crash(boot: Booter, tmp_path: Path) -> None:
    guest = boot(Machine(append="initcall_debug loglevel=8 kcovlab.mode=none"))
    guest.crash("oops")
    log = guest.console()
    words = list(find_words(log))
    assert len(words) >= LEAST
    assert any("Call Trace" in line for line in log.splitlines())
    starts = find_starts(guest.kernel.vmlinux)
    # The kernel's sizes are the distances to the next symbols.
    unknown = [word for word in words if (word.name, word.size) not in starts]
    assert unknown == []
    addresses = [starts[word.name, word.size] + word.offset - (not word.is_exact) for word in words]
    expected = [frames[0] for frames in addr2line(guest.kernel.vmlinux, addresses)]

    options = [
        "-s",
        guest.kernel.vmlinux,
        *(word for path in guest.userland.modules for word in ("-s", path)),
    ]
    done = run_kcovdbg(*options, "sym", "-", "--json", input=log, status=0, timeout=600)
    rows = [row for row in json.loads(done.stdout) if "[" not in row["input"]]
    found: Counter[tuple[str, str]] = Counter()
    for word, row, (_, file, line) in zip(words, rows, expected, strict=True):
        assert row["input"] == f"{word.name}+{word.offset:#x}/{word.size:#x}"
        assert row["errors"] == []
        frame = row["frames"][0] if row["frames"] else {"file": "??", "line": 0}
        mine = f"{Path(frame['file'] or '??').name}:{frame['line'] or 0}"
        theirs = f"{Path(file).name}:{line}"
        if mine != theirs:
            found[f"{row['input']} {'exact' if word.is_exact else 'return'}: {mine}", theirs] += 1
    assert found == Counter()

    text = run_kcovdbg(*options, "sym", "-", input=log, status=0, timeout=600).stdout
    left = [
        line for line in text.splitlines() if WORD.search(line) and "[" not in WORD.search(line)[0]
    ]
    assert left == []
