# SPDX-License-Identifier: LGPL-2.1-or-later
"""A short storm of KCOV's users while the kernel is read; ``python -m tests.lab storm`` takes as
long as one wants.
"""

from __future__ import annotations

import pytest

from tests.lab import storm
from tests.lab.initramfs import Userland
from tests.lab.kernel import Kernel
from tests.lab.observer import Seen
from tests.support.kernels import build
from tests.support.kernels.asker import Asker
from tests.support.kernels.rows import E9A

SECONDS = 8


@pytest.mark.parametrize(
    "look", [storm.storm_from_outside, storm.storm_from_inside], ids=["outside", "inside"]
)
def test_storm(kernel: Kernel, userland: Userland, look: storm.Look) -> None:
    found = look(kernel, userland, SECONDS)
    print(storm.describe(found))
    assert storm.is_clean(found), storm.describe(found)
    assert found["checks"]
    assert found["reads"] > 100
    # Otherwise there was no storm.
    assert sum(found["storm"].values()) > 1000


@pytest.mark.parametrize("state", ["PCs", "too many", "unread"])
def test_counts_of_comparisons(state: str) -> None:
    """A count that fits PCs is legal, a larger one is a violation, and an unread one is neither."""
    made = build.Kernel(E9A)
    start = made.buffers["compared"]
    if state == "unread":
        made.target.holes = [(start, start + 8)]
    else:
        made.write_word(start, 300 if state == "PCs" else 1 << 40)
    findings, _ = Asker(made.target).rows("check B2")
    seen = Seen()
    seen.count_findings(findings)
    counted = {"PCs": seen.counts_of_pcs, "too many": len(seen.violations), "unread": seen.unjudged}
    assert {name: count for name, count in counted.items() if count} == {state: 1}
