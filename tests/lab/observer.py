# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs commands on a running kernel repeatedly, from the host or in the guest, and counts their
results.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.support.kernels.asker import Asker
from tests.support.run_limits import RAW, TooSlowError, time_limit

# Each follows a check.
LINES = (
    *(
        "tasks -a --json",
        "objects --json",
        "remote --json",
        "areas --json",
        "check -a",
        "percpu --json",
        "why {tid}",
    ),
    *("why {kcov}", "buffer {tid} --raw --json -n 50", "buffer kcov:{kcov} --raw --json -n 50"),
)


@dataclass
class Seen:
    """The results of all commands."""

    seconds: float = 0.0
    reads: int = 0
    commands: int = 0
    checks: int = 0
    racing: int = 0
    """Findings that `check` reports as racing or transient."""
    unjudged: int = 0
    """Rules that `check` could not judge, as memory was freed while it read."""
    counts_of_pcs: int = 0
    settled: int = 0
    """Inconsistencies that were gone when `check` read the state again."""
    refused: int = 0
    slowest: float = 0.0
    rows: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Rows with errors, by command."""
    violations: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    """Messages of rows with errors, without numbers."""

    def count_findings(self, findings: Iterable[dict[str, Any]]) -> None:
        """Count the findings of `check` by what they mean; keep the violations."""
        for finding in findings:
            severity = finding["severity"]
            if severity == "unknown":
                self.unjudged += 1
            elif is_count_of_pcs(finding):
                self.counts_of_pcs += 1
            elif severity in ("error", "warning"):
                self.violations.append(json.dumps(finding))
            elif severity in ("racing", "transient"):
                self.racing += 1


def is_count_of_pcs(finding: dict[str, Any]) -> bool:
    """Return whether a count is too large for comparisons, but not for PCs, which take one word
    instead of four.

    A thread that changes from PCs to comparisons without resetting the count leaves such a count,
    which is not the kernel's mistake.
    """
    if finding["rule"] != "B2":
        return False
    values = {value["name"]: int(value["value"], 0) for value in finding["values"]}
    # A finding that stands for those left out has neither.
    return "count" in values and values["count"] < values["bytes"] // 8


class Looker:
    """Runs commands over a live target."""

    def __init__(self, options: TargetOptions, patience: float) -> None:
        target = open_target(options)
        assert isinstance(target, DrgnTarget)
        self.target = target
        self.asker = Asker(target)
        self.patience = patience
        self.seen = Seen()
        self._tids: list[int] = [1]
        self._kcovs: list[str] = ["0xffffffffffffff00"]
        read = self.target._read

        def counted(address: int, size: int) -> bytes:
            self.seen.reads += 1
            return read(address, size)

        self.target._read = counted

    def look(self, seconds: float, interval: float = 0.0, seed: int = 0) -> Seen:
        """Run commands for some seconds, one per interval."""
        chance = random.Random(seed)
        started = time.monotonic()
        for line in itertools.cycle(line for other in LINES for line in ("check --json", other)):
            if time.monotonic() - started >= seconds:
                break
            begun = time.monotonic()
            self.look_once(
                line.format(tid=chance.choice(self._tids), kcov=chance.choice(self._kcovs))
            )
            time.sleep(max(0.0, interval - (time.monotonic() - begun)))
        self.seen.seconds = time.monotonic() - started
        return self.seen

    def look_once(self, line: str) -> None:
        """Run one command."""
        seen = self.seen
        seen.commands += 1
        name = line.split()[0]
        seen.checks += name == "check"
        started = time.monotonic()
        try:
            with time_limit(self.patience):
                out, err = self.asker.ask(line)
        except TooSlowError:
            seen.hangs.append(line)
            return
        finally:
            seen.slowest = max(seen.slowest, time.monotonic() - started)
        if found := RAW.search(out + err):
            seen.raw.append(f"{line}: {found[0]!r}")
        if "internal error: " in err:
            seen.crashes.append(f"{line}: {err}")
        elif error := re.search(r"^error: (.*)", err, re.MULTILINE):
            # The task or object may be gone by now.
            seen.refused += 1
            seen.refusals[_plain(error[1])] += 1
        else:
            seen.settled += sum(
                map(int, re.findall(r"(\d+) disagreements? w(?:as|ere) gone", err + out))
            )
            if line.endswith("--json"):
                self._take(name, json.loads(out))

    def _take(self, name: str, rows: list[dict[str, Any]]) -> None:
        seen = self.seen
        seen.rows[name] += len(rows)
        seen.errors[name] += sum(bool(row.get("errors")) for row in rows)
        seen.texts.update(_plain(error) for row in rows for error in row.get("errors", ()))
        if name == "check":
            seen.count_findings(rows)
        elif name == "tasks":
            self._tids = [row["pid"] for row in rows if row["kcov"] not in (None, "0x0")] or [1]
        elif name == "objects":
            self._kcovs = [row["kcov"] for row in rows if row["kcov"]] or self._kcovs


def _plain(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+|\d+", "N", text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lab.observer", description=__doc__)
    parser.add_argument(
        "--qemu", help="a guest's QMP socket; by default the kernel that this runs on"
    )
    parser.add_argument("-s", "--symbols", action="append", default=[])
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument(
        "--interval", type=float, default=0, help="seconds from one command to the next, at least"
    )
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds that one command may take"
    )
    parser.add_argument("--ready", type=Path, help="a file to create once the target is open")
    args = parser.parse_args()
    looker = Looker(
        TargetOptions(qemu=args.qemu, kernel=args.qemu is None, symbols=args.symbols), args.patience
    )
    # Symbols are loaded once, which is not part of the measured time.
    for line in ("tasks", "check --json"):
        looker.look_once(line)
    looker.seen = Seen()
    if args.ready:
        args.ready.touch()
    print(json.dumps(vars(looker.look(args.seconds, args.interval))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
