# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much slower a guest is while ``monitor`` looks at it: ``python -m tests.bench.monitor
[SECONDS]``.

A guest of the lab collects in rounds, as a fuzzer's executor does, and counts them for each second.
A monitor with default settings looks at it for some seconds, then is stopped (SIGSTOP) for as long,
and so on. What is printed is the median of the ratios of neighboring spans, by the clock and by the
processor time that QEMU got: on a busy machine the first also shows what other programs take.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.lab import kernel as kernels
from tests.lab.collect_guest import SHARED, boot_shared
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import ROOT
from tests.lab.recipe import RECIPES

SPAN = 5.0


def main() -> int:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    kernel = kernels.find(RECIPES["default"])
    if kernel is None:
        print("the lab's kernel isn't built: python -m tests.lab build", file=sys.stderr)
        return 2
    userland = make_userland(kernel)
    with tempfile.TemporaryDirectory() as folder:
        exchange = Path(folder)
        with boot_shared(kernel, userland, exchange, memory_mib=256) as lab:
            guest = lab.guest
            worker = threading.Thread(
                target=guest.run, args=(f"{SHARED}/pace {seconds + 20}\n", seconds + 120)
            )
            worker.start()
            command = [
                sys.executable,
                "-m",
                "kcovdbg",
                *lab.target,
                "monitor",
                "--record",
                str(exchange / "run.jsonl"),
            ]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as monitor:
                time.sleep(15)
                spans = _alternate(monitor, guest.pid, seconds)
                worker.join()
                monitor.send_signal(signal.SIGCONT)
                monitor.terminate()
                print(monitor.communicate()[0].strip())
        lines = [line.split() for line in (exchange / "run1.out").read_text().splitlines()]
    rounds = [(float(end), int(count)) for end, count in lines]
    rates = [(_rate(rounds, span), span) for span in spans]
    off = [rate for rate, span in rates if not span.is_on and rate]
    print(
        f"{len(spans)} spans of {SPAN:g} s, {statistics.median(off):.0f} rounds a second "
        f"without the monitor"
    )
    for name, values in (
        ("by the clock", rates),
        ("by QEMU's processor time", [(rate * SPAN / span.used, span) for rate, span in rates]),
    ):
        ratios = [
            first / second if span.is_on else second / first
            for (first, span), (second, _) in pairwise(values)
            if first and second
        ]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"rounds with the monitor, {name}: {middle:.3f} of those without (quartiles "
            f"{low:.3f} to {high:.3f})"
        )
    return 0


class _Span(NamedTuple):
    start: float
    end: float
    used: float
    """Processor time of QEMU."""
    is_on: bool


def _alternate(monitor: subprocess.Popen[str], qemu: int, seconds: float) -> list[_Span]:
    """Stop the monitor and let it go on in turn; return the spans with whether it ran."""
    spans: list[_Span] = []
    is_on = True
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        monitor.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)
        start, used = time.time(), _processor_time(qemu)
        time.sleep(SPAN)
        spans.append(_Span(start, time.time(), _processor_time(qemu) - used, is_on))
        is_on = not is_on
    return spans


def _processor_time(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rate(rounds: list[tuple[float, int]], span: _Span) -> float:
    """Return the rounds a second of the whole seconds within a span."""
    inside = [count for stop, count in rounds if span.start + 1 <= stop <= span.end]
    return sum(inside) / len(inside) if inside else 0.0


if __name__ == "__main__":
    sys.exit(main())
