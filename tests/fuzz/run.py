# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs the state commands on damaged memory: no crash, no hang, no unescaped output, no untrue
answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import resource
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.renderable import error_lines
from kcovdbg.console.runner import find_command, run_command, run_line
from kcovdbg.console.terminal import Color, Painter, Terminal
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.model.state import Part, Source
from kcovdbg.walk.layout import detect_layout
from kcovdbg.walk.state import StateReader, read_state
from tests.fuzz.damage_kinds import Places, do_damage
from tests.fuzz.damaged_target import open_damaged
from tests.fuzz.oracle import Oracle
from tests.support.run_limits import RAW, TooSlowError, time_limit

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

    from kcovdbg.console.command import Command
    from kcovdbg.walk.layout import Layout

SECONDS = 20
"""Of a processor, that one case may take; of the clock fifteen times as much, since the machine may
do much else.
"""
# The state commands, and the walk whose remarks say what is missing of each.
_PARTS = Part.TASKS | Part.ALL_TASKS | Part.SAVED | Part.REMOTE | Part.AREAS | Part.OBJECTS
STATE = {
    "tasks -a": ("tasks",),
    "objects": ("tasks", "remote", "files"),
    "remote": ("remote",),
    "areas": ("areas",),
    "saved": ("tasks",),
}
TEXTS = (
    "info",
    "tasks -a",
    "tasks",
    "objects",
    "remote",
    "areas",
    "saved",
    "tasks -a --csv",
    "objects --csv",
    "remote --csv",
)
_RECORDS = 32
# Of address space of a process, and the cases that it runs at once.
_MEMORY, _CHUNK = 4 << 30, 50


@dataclass
class Figures:
    """The results of some cases."""

    cases: int = 0
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    """Control bytes that a terminal obeys."""
    wrong: list[str] = field(default_factory=list)
    """Answers that differ from memory."""
    commands: int = 0
    rows: int = 0
    """That were compared with the damaged bytes."""
    changed: int = 0
    """Cases in which some answer differs from the healthy one."""
    violated: int = 0
    """Commands of `check` with violations."""
    answered: int = 0
    refused: int = 0
    """With a reason."""
    processor: float = 0.0
    """Seconds."""
    slowest: float = 0.0
    largest: int = 0
    """Kibibytes that a case took at most."""
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def problems(self) -> list[str]:
        return [*self.crashes, *(f"HANG {case}" for case in self.hangs), *self.raw, *self.wrong]

    def add(self, other: Figures) -> None:
        """Add the results of other cases."""
        for name, value in vars(other).items():
            mine = getattr(self, name)
            setattr(
                self, name, max(mine, value) if name in ("slowest", "largest") else mine + value
            )

    def __str__(self) -> str:
        numbers = {
            name: len(value) if isinstance(value, list) else value
            for name, value in vars(self).items()
            if name != "kinds"
        }
        kinds = ", ".join(f"{name} {number}" for name, number in sorted(self.kinds.items()))
        return (
            ", ".join(f"{value:g} {name}" for name, value in numbers.items())
            + f"\n  damaged: {kinds}"
        )


class Fuzzer:
    """Cases over one loaded Program of the demo's kernel.

    :param is_judged: whether answers are compared with what a second reader finds in the damaged
        bytes, which needs GDB.
    """

    def __init__(self, *, is_judged: bool = False) -> None:
        self.target = open_damaged()
        self.layout: Layout = detect_layout(self.target)
        self.names = Kernel(KernelOptions(lambda: self.target)).names.locations
        self._parsed: dict[str, tuple[Command, Namespace]] = {}
        snapshot = read_state(self.target, self.layout, _PARTS)
        self.places = Places(self.target, snapshot)
        # Memory that a whole run reads can be damaged.
        case = Case(self, Figures(), "healthy", Random(0))
        for line in (*STATE, *TEXTS, "check -a", *case.questions()):
            case.command(line)
        assert not case.figures.problems, case.figures.problems
        self.places.pages = sorted(self.target.memory.pages)
        self.oracle = Oracle(self.target, case.rows) if is_judged else None
        if self.oracle is not None:
            self.places.add_more(self.oracle.reader)
        self.healthy = {line: case.rows(line) for line in STATE}

    def run(self, seeds: Iterable[int], figures: Figures | None = None) -> Figures:
        """Run one case for each seed."""
        figures = figures or Figures()
        for seed in seeds:
            self.case(seed, figures)
        return figures

    def run_line(self, workspace: Workspace, line: str, terminal: Terminal) -> int:
        """Run a command as a user does; repeated lines are parsed once."""
        if line not in self._parsed:
            if line.split(" -")[0] not in (
                "info",
                "tasks",
                "objects",
                "remote",
                "areas",
                "saved",
                "check",
            ):
                return run_line(workspace, line, terminal)
            self._parsed[line] = find_command(workspace, line.split())
        return run_command(workspace, *self._parsed[line], terminal)

    def case(self, seed: int, figures: Figures) -> None:
        """Run one case."""
        random = Random(seed)
        self.target.heal()
        damage = do_damage(self.target, self.places, random)
        self.target.forget()
        self.target.memory.settle()
        started, processor = time.monotonic(), time.process_time()
        case = Case(self, figures, f"seed {seed} ({damage})", random)
        try:
            with time_limit(15 * SECONDS, SECONDS):
                case.run()
        except TooSlowError:
            figures.hangs.append(f"seed {seed} ({damage})")
        finally:
            self.target.heal()
        figures.cases += 1
        figures.changed += case.is_changed
        figures.processor += time.process_time() - processor
        figures.slowest = max(figures.slowest, time.monotonic() - started)
        figures.kinds.update(damage.split(", "))


class Case:
    """The commands of one case."""

    def __init__(self, fuzzer: Fuzzer, figures: Figures, name: str, random: Random) -> None:
        self._fuzzer = fuzzer
        self.figures = figures
        self._name = name
        self._random = random
        self.is_changed = False
        self._workspace = Workspace(
            COMMANDS, UserInputs(Kernel(KernelOptions(lambda: fuzzer.target)))
        )
        self._workspace.inputs.kernel.memory.layout = fuzzer.layout
        self._workspace.inputs.kernel.names.locations = fuzzer.names

    def questions(self) -> list[str]:
        """Commands about something that this case's dice choose."""
        random, places = self._random, self._fuzzer.places
        kcov = f"{random.choice(places.kcovs):#x}"
        tid = random.choice(places.tids)
        return [
            f"why {tid}",
            f"why usb:{random.randrange(3)}",
            f"why {kcov}",
            f"last {random.choice(places.tids)} -n 5",
            f"buffer {tid} -n 20",
            f"buffer kcov:{kcov} --tail -n 20",
            f"buffer area:{random.choice(places.areas):#x} --json -n 20",
            f"buffer saved:t{tid} -n 5",
            f"top kcov:{kcov} --json",
            f"trace kcov:{kcov} --json",
            f"objects {kcov}",
            f"diff {tid} kcov:{kcov} --json",
        ]

    def run(self) -> None:
        """Ask for the state and for some of the rest, seldom for all; judge the answers where there
        is an oracle.
        """
        fuzzer, random = self._fuzzer, self._random
        whole = random.random() < 0.005
        self._judge()
        lines = [random.choice(TEXTS)]
        if random.random() < 0.4:
            lines.append(random.choice(("check -a", "check --json")))
        if random.random() < 0.4:
            lines.append(random.choice(self.questions()))
        with self._shared():
            for line in (
                (*TEXTS, "check -a", "check -a --json", *self.questions()) if whole else lines
            ):
                self.command(line)
        if whole:
            # As a user runs it: with a look of its own.
            for line in lines:
                self.command(line)
        if fuzzer.oracle is not None and random.random() < 0.2:
            self._judge_buffer(fuzzer.oracle)

    def _judge(self) -> None:
        fuzzer, figures = self._fuzzer, self.figures
        oracle = fuzzer.oracle
        if oracle is not None:
            oracle.take_tasks([])
        with self._shared() as reader:
            for line, sources in STATE.items():
                text, said = self.command(f"{line} --json")
                rows = self._parse(line, text)
                if rows is None:
                    continue
                if rows != fuzzer.healthy[line]:
                    self.is_changed = True
                if oracle is None:
                    continue
                if line == "tasks -a":
                    oracle.take_tasks(rows)
                remarks = reader.recall().lacks(*map(Source, sources))
                # Counted only where the user sees it.
                remarks = tuple(
                    remark for remark in remarks if remark.isprintable() and remark in said
                )
                figures.rows += len(rows)
                figures.wrong += [
                    f"{self._name}: {problem}" for problem in oracle.judge(line, rows, remarks)
                ]

    def _judge_buffer(self, oracle: Oracle) -> None:
        kcov = self._random.choice(self._fuzzer.places.kcovs)
        text, _ = self.command(f"buffer kcov:{kcov:#x} --raw --json -n {_RECORDS}")
        rows = self._parse("buffer", text) if text else None
        if rows is not None:
            self.figures.rows += min(len(rows), _RECORDS)
            problems = oracle.judge_buffer(kcov, rows, _RECORDS)
            self.figures.wrong += [f"{self._name}: buffer: {problem}" for problem in problems]

    @contextlib.contextmanager
    def _shared(self) -> Iterator[StateReader]:
        """Let several commands share one look."""
        reader = StateReader(self._fuzzer.target, self._fuzzer.layout)
        original = Context.reader
        Context.reader = property(lambda _self: reader)  # type: ignore[assignment,method-assign]
        try:
            yield reader
        finally:
            Context.reader = original  # type: ignore[method-assign]

    def rows(self, line: str) -> list[dict[str, Any]]:
        """Run a command and return its rows."""
        return self._parse(line, self.command(f"{line} --json")[0]) or []

    def _parse(self, line: str, text: str) -> list[dict[str, Any]] | None:
        try:
            rows: list[dict[str, Any]] = json.loads(text)
        except ValueError as error:
            if text:
                self.figures.crashes.append(f"{self._name}: {line}: no JSON: {error}")
            return None
        return rows

    def command(self, line: str) -> tuple[str, str]:
        """Run a command and check its output.

        :return: its answer, and what it says beside.
        """
        figures = self.figures
        out, err = io.StringIO(), io.StringIO()
        terminal = Terminal(out, err, 120, Painter(), Painter(), Color.NEVER)
        figures.commands += 1
        try:
            status = self._fuzzer.run_line(self._workspace, line, terminal)
            figures.violated += status == 1 and line.startswith("check")
        except KcovdbgError as error:
            figures.refused += 1
            err.writelines(
                f"{terminal.error_painter.paint(fragments)}\n" for fragments in error_lines(error)
            )
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            figures.crashes.append(
                f"{self._name}: {line}: {''.join(traceback.format_exception(error)[-3:])}"
            )
            return "", ""
        text = out.getvalue() + err.getvalue()
        found = RAW.search(text)
        if found is not None:
            figures.raw.append(
                f"{self._name}: {line}: {found[0]!r} in "
                f"{text[max(0, found.start() - 40) : found.end() + 20]!r}"
            )
        if line.endswith("--json") and not self.is_state(line):
            self._parse(line, out.getvalue())
        return out.getvalue(), err.getvalue()

    @staticmethod
    def is_state(line: str) -> bool:
        """Return whether the caller parses the answer."""
        return line.removesuffix(" --json") in STATE


_fuzzer: Fuzzer | None = None


def _open() -> None:
    global _fuzzer
    # Absurd sizes must not be allocated.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    _fuzzer = Fuzzer(is_judged=True)


def _run(seeds: range) -> Figures:
    assert _fuzzer is not None
    figures = _fuzzer.run(seeds)
    figures.largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return figures


def run_cases(
    cases: int, seed: int, workers: int, seconds: float, say: Callable[[str], None]
) -> bool:
    """Run cases in processes, each with a Program of its own, and print failures and figures, as
    :func:`gather`.

    :param seed: of the first case; each next one has the next number.
    """
    end = seed + cases
    chunks = [range(first, min(first + _CHUNK, end)) for first in range(seed, end, _CHUNK)]
    with multiprocessing.get_context("spawn").Pool(workers, _open) as pool:
        return gather(pool.imap(_run, chunks), seed, seconds, say)


def gather(parts: Iterable[Figures], seed: int, seconds: float, say: Callable[[str], None]) -> bool:
    """Print failures as they are found, and figures at the end.

    :param seconds: after which no more is done, of however many cases.
    :return: whether nothing went wrong.
    """
    figures, started, said = Figures(), time.monotonic(), 0
    for part in parts:
        for problem in part.problems:
            say(problem)
        figures.add(part)
        if time.monotonic() - started > seconds:
            say(f"stopped after {seconds:.0f} s, before seed {seed + figures.cases}")
            break
        if figures.cases - said >= 500:
            said = figures.cases
            say(
                f"{said} cases after {time.monotonic() - started:.0f} s, "
                f"{len(figures.problems)} problems"
            )
    say(f"{figures}\n  {time.monotonic() - started:.0f} s")
    return not figures.problems
