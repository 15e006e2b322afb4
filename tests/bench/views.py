# SPDX-License-Identifier: LGPL-2.1-or-later
"""The full-screen view: the cost of a frame compared with an empty one, for any length of the
trace.
"""

from __future__ import annotations

import asyncio
import io
import resource
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prompt_toolkit.application import Application, create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import UIContent, UIControl
from prompt_toolkit.output.vt100 import Vt100_Output

from kcovdbg.abi.record import PC, Encoding
from kcovdbg.buffers.trace_view import TracePane, TraceView
from kcovdbg.buffers.view_screen import ViewScreen
from kcovdbg.model.buffer import Buffer
from kcovdbg.records.pc_locations import LocationCache
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer
from tests.bench.measure import Result, at_most, bounded

SIZE = Size(50, 160)
RECORDS = 1 << 20


class _Nowhere(io.StringIO):
    encoding = "utf-8"

    def write(self, data: str) -> int:
        return len(data)

    def isatty(self) -> bool:
        return True


class _Blank(UIControl):
    """As many blank lines as the screen has: what it costs to draw anything at all."""

    def create_content(self, width: int, height: int | None) -> UIContent:
        text = " " * width
        return UIContent(lambda _number: [("", text)], line_count=height or 1)


def _frames(application: Application[Any], move: Callable[[int], None], count: int) -> float:
    """Draw frames, and return the shortest of their times in seconds: what a quiet machine would
    need.
    """
    times: list[float] = []

    async def draw() -> None:
        task = asyncio.ensure_future(application.run_async(handle_sigint=False))
        await asyncio.sleep(0.05)
        for number in range(count):
            move(number)
            start = time.perf_counter()
            application._redraw()
            times.append(time.perf_counter() - start)
        application.exit()
        await task

    asyncio.run(draw())
    return min(times)


def _output() -> Vt100_Output:
    return Vt100_Output(_Nowhere(), lambda: SIZE, term="xterm", enable_cpr=False)


def plain_frame(count: int) -> float:
    """What prompt_toolkit needs to draw blank lines."""
    layout = Layout(
        HSplit([Window(height=1), Window(_Blank()), Window(height=1), Window(height=1)])
    )
    with create_pipe_input() as keys:
        application: Application[None] = Application(
            layout=layout, full_screen=True, input=keys, output=_output()
        )
        return _frames(application, lambda _number: None, count)


def view_frame(view: TraceView, count: int, step: int) -> float:
    """What a frame of a view costs after moving by so many rows."""
    with create_pipe_input() as keys, create_app_session(keys, _output()):
        screen = ViewScreen(view)
        return _frames(screen.application, lambda _number: screen.state.move(step), count)


def _stretch(trace: Sequence[int]) -> array[int]:
    """Repeat a trace until it has a million records."""
    words = array("Q", trace)
    while len(words) < RECORDS:
        words.extend(words)
    return words[:RECORDS]


def run(table: LocationTable, traces: dict[str, array[int]], rounds: int) -> Iterator[Result]:
    names = LocationCache(Symbolizer(table=AwaitedTable(table)).locate_all)
    encoding = Encoding(PC, 8)
    sides = [
        TracePane(Buffer(name, encoding, _stretch(traces[name]), RECORDS), names)
        for name in ("vfs-a", "vfs-b")
    ]
    count = 20 * rounds
    empty = plain_frame(count)
    for what, view in (
        ("one trace", TraceView(sides[0])),
        ("two by index", TraceView(*sides, by_index=True)),
        ("two aligned", TraceView(*sides)),
    ):
        for move, step in (("line", 1), ("page", 47)):
            frame = view_frame(view, count, step)
            yield at_most(
                f"a frame of {what}, {RECORDS} records, by {move}",
                frame,
                empty,
                "prompt_toolkit, blank",
                3,
            )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    view_frame(TraceView(*sides, by_index=True), 40 * rounds, 4999)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    yield bounded("memory that scrolling through them takes", grown, 8, "MiB")
