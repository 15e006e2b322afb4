# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn imports the plugin at every start: it has to be next to nothing."""

import subprocess
import sys

import pytest

pytest.importorskip("drgn")


def test_the_plugin_imports_next_to_nothing():
    code = (
        "import sys, drgn, drgn.commands.linux\n"
        "before = set(sys.modules)\n"
        "import kcovdbg.frontends.drgn.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == ["kcovdbg", "kcovdbg.frontends", "kcovdbg.frontends.drgn", "kcovdbg.frontends.drgn.plugin"]
