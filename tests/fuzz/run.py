# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs every command that shows state over damaged memory: nothing may break, hang, or reach a terminal unescaped."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.run import run_line
from kcovdbg.commands.session import Context, Session
from kcovdbg.commands.terminal import Terminal
from kcovdbg.errors import KcovdbgError
from kcovdbg.render.paint import Painter
from kcovdbg.render.theme import Color
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import detect_layout
from tests.fuzz.damaged import DamagedTarget, open_damaged
from tests.fuzz.damages import Places, do_damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kcovdbg.walk.layout import Layout

SECONDS = 20
"""That one case may take."""
# What a terminal obeys: C0 but for the newline, DEL, C1, and controls of direction.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
STATE = ("info", "tasks -a", "objects", "remote", "areas", "percpu", "check -a")


@dataclass
class Figures:
    """What came of some cases."""

    cases: int = 0
    crashes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    violated: int = 0
    refused: int = 0
    slowest: float = 0.0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        return not (self.crashes or self.hangs or self.raw)

    def __str__(self) -> str:
        rate = self.cases / max(self.seconds, 0.001)
        return (
            f"{self.cases} cases in {self.seconds:.0f} s ({rate:.1f}/s, slowest {self.slowest:.1f} s): "
            f"{len(self.crashes)} crashes, {len(self.hangs)} hangs, {len(self.raw)} raw control bytes; "
            f"check found violations in {self.violated}, {self.refused} commands were refused with a reason"
        )


class TooSlowError(Exception):
    """A case took longer than it may."""


class Fuzzer:
    """Cases over one loaded Program, the demo's by default."""

    def __init__(self, target: DamagedTarget | None = None) -> None:
        self.target = target or open_damaged()
        self.layout: Layout = detect_layout(self.target)
        census = Census(self.target, self.layout)
        snapshot = census.snapshot()
        self.places = Places(self.target, snapshot)
        self.names = Session(COMMANDS, lambda: self.target).names
        # What is read by a whole run is what can be damaged.
        self._commands(Figures(), "healthy", Random(0))

    def run(self, seeds: Iterator[int] | range, figures: Figures | None = None) -> Figures:
        """Run one case for each seed."""
        figures = figures or Figures()
        for seed in seeds:
            self.case(seed, figures)
        return figures

    def case(self, seed: int, figures: Figures) -> None:
        """Run one case."""
        random = Random(seed)
        self.target.heal()
        damage = do_damage(self.target, self.places, random)
        started = time.monotonic()
        try:
            with time_limit(SECONDS):
                self._commands(figures, f"seed {seed} ({damage})", random)
        except TooSlowError:
            figures.hangs.append(f"seed {seed} ({damage})")
        took = time.monotonic() - started
        figures.cases += 1
        figures.seconds += took
        figures.slowest = max(figures.slowest, took)
        figures.kinds.update(damage.split(", "))
        self.target.heal()

    def _commands(self, figures: Figures, case: str, random: Random) -> None:
        session = Session(COMMANDS, lambda: self.target)
        session.layout = self.layout
        session.names = self.names
        shared = Census(self.target, self.layout)
        tids = [random.randrange(100) for _ in range(2)]
        lines = [*STATE, f"why {tids[0]}", f"why usb:{random.randrange(3)}", f"last {tids[1]} -n 5"]
        lines.append(f"why {random.choice(self.places.kcovs):#x}")
        with _census_of(shared):
            for line in lines:
                for form in ("", " --json"):
                    if form and line.startswith(("why", "last")):
                        continue
                    self._command(session, line + form, case, figures)

    def _command(self, session: Session, line: str, case: str, figures: Figures) -> None:
        out, err = io.StringIO(), io.StringIO()
        terminal = Terminal(out, err, 120, Painter(), Painter(), Color.NEVER)
        try:
            status = run_line(session, line, terminal)
            figures.violated += status == 1 and line == "check -a"
        except TooSlowError:
            raise
        except KcovdbgError as error:
            figures.refused += 1
            err.write(str(error))
        except Exception as error:  # noqa: BLE001 - this is what is looked for
            figures.crashes.append(f"{case}: {line}: {''.join(traceback.format_exception(error)[-3:])}")
            return
        text = out.getvalue() + err.getvalue()
        found = RAW.search(text)
        if found is not None:
            figures.raw.append(f"{case}: {line}: {found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 20]!r}")
        if line.endswith("--json") and out.getvalue():
            try:
                json.loads(out.getvalue())
            except ValueError as error:
                figures.crashes.append(f"{case}: {line}: no JSON: {error}")


@contextlib.contextmanager
def _census_of(census: Census) -> Iterator[None]:
    """Let the commands of a case share one look."""
    original = Context.census
    Context.census = property(lambda _self: census)  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        Context.census = original  # type: ignore[method-assign]


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise when something takes too long."""

    def stop(_signal: int, _frame: Any) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
