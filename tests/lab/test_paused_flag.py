# SPDX-License-Identifier: LGPL-2.1-or-later
"""KCOV_PAUSED in a guest: it is set in tasks that are switched out, and `tasks` and `why` say nothing of it there.

The kernel is built by hand: python -m tests.lab build --recipe dataflow.
"""

from __future__ import annotations

import pytest

from kcovdbg.analysis.missing_coverage import Reason
from tests.lab import kernel as kernels
from tests.lab import requirements
from tests.lab.comparison import lines_of, parse_outputs
from tests.lab.generation import GENERATIONS
from tests.lab.initramfs import make_userland
from tests.lab.kcovdbg_run import run_kcovdbg, symbol_options
from tests.lab.situation import STANDING, dump_of

pytestmark = pytest.mark.lab


def test_switched_out_tasks() -> None:
    kernel = kernels.find(GENERATIONS["dataflow"].recipe)
    lacking = requirements.missing(requirements.BOOT)
    if kernel is None or lacking:
        pytest.skip("the kernel isn't built: python -m tests.lab build --recipe dataflow")
    userland = make_userland(kernel)
    dump = dump_of(kernel, userland, STANDING)
    lines = [line for line in lines_of(dump.truth).values() if line.get("owner_tid")]
    local = [line for line in lines if line["owner_tid"] == line["tid"] and not line["remote"]]
    questions = {"tasks": "tasks -a --json"} | {str(line["tid"]): f"why {line['tid']} --json" for line in local}
    words = [word for question in questions.values() for word in ("-e", question)]
    done = run_kcovdbg("-c", dump.path, *symbol_options(kernel, userland), *words)
    answers = parse_outputs(done.stdout, questions)
    tasks = {row["pid"]: row for row in answers.pop("tasks")}
    assert len(local) > 10
    for line in local:
        row = tasks[line["tid"]]
        # KCOV_IN_CTXSW and KCOV_PAUSED.
        assert int(row["kcov_mode_raw"], 16) >> 29 == 3
        assert (row["kcov_mode"], row["errors"]) == (line["mode"], [])
        codes = {answer["code"] for answer in answers[str(line["tid"])]}
        assert codes
        assert Reason.NOT_RECORDING not in codes
