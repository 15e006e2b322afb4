# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each example runs, and shows what it is there for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_tour():
    pytest.importorskip("drgn")
    environment = os.environ | {"KCOVDBG": f"{sys.executable} -m kcovdbg"}
    done = subprocess.run(
        [EXAMPLES / "tour.sh"], cwd=EXAMPLES.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = {part.partition("\n")[0]: part.partition("\n")[2] for part in done.stdout.split("\nkcovdbg> ")[1:]}
    assert len(answers) == 8
    assert all(answer.strip() for answer in answers.values())
    # What the demo was made for: a section in flight, on top of a session that is saved.
    assert "softirq-section over local" in answers["tasks"]
    assert "kc-traffic" in answers["saved"]
    assert "in-use" in answers["areas"]
    assert "usb:1 " in answers["remote"]
    assert "__usb_hcd_giveback_urb" in answers["buffer 82"]
