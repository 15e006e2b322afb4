# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of property tests, and the fixture of those that run a command line on a kernel in memory."""

import json

import pytest
from hypothesis import settings

from kcovdbg.frontends.cli import main

# No test depends on how busy the machine is.
settings.register_profile("kcovdbg", deadline=None)
settings.load_profile("kcovdbg")


@pytest.fixture
def cli(capsys):
    """Run a command line on a kernel; return its status, its answer (parsed if it is JSON), and its errors."""

    def cli(kernel, *words):
        status = main(words, open_target=lambda _options: kernel.target)
        out, err = capsys.readouterr()
        return status, json.loads(out) if "--json" in words else out, err

    return cli
