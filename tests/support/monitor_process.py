# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg monitor`` in a process of its own, whose kernel shows the looks of a recording:
``RECORDING LOOKS [OPTION...]``.

It begins with so many looks, and takes the others one by one.
"""

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from kcovdbg.__main__ import main
from kcovdbg.frontends import cli
from kcovdbg.monitor.samples import read_samples
from kcovdbg.target.connection import MachineState
from tests.support.samples import FakeSource
from tests.support.state import make_layout, make_target

MODULE = "tests.support.monitor_process"
EXAMPLE = Path(__file__).parents[2] / "examples/fuzz.jsonl"


def run(recording, looks, *words):
    samples = list(read_samples(recording))

    def make_source(_target, _layout, _names, interval, share, record, _machine):
        source = FakeSource(*samples, interval=interval, share=share, record=record)
        for _ in range(int(looks) - 1):
            source.advance()
        return source

    target = make_target(live=True, state=lambda: MachineState.RUNNING, watchpoints=None)
    run_monitor = partial(
        cli.main, ["monitor", "--no-records", *words], open_target=lambda _options: target
    )
    with (
        patch("kcovdbg.monitor.command.LiveSource", make_source),
        patch("kcovdbg.inputs.kernel_memory.KernelMemory.layout", make_layout()),
        patch("kcovdbg.frontends.cli.main", run_monitor),
    ):
        return main()


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
