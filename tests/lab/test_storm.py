# SPDX-License-Identifier: LGPL-2.1-or-later
"""A short storm of KCOV's users while the kernel is read; ``python -m tests.lab storm`` takes as
long as one wants.
"""

from __future__ import annotations

import pytest

from tests.lab import storm
from tests.lab.initramfs import Userland
from tests.lab.kernel import Kernel

SECONDS = 12


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
