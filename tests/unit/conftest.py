# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures: command lines on a kernel in memory, traces with made-up names."""

import json

import pytest

from kcovdbg.frontends.cli import main
from kcovdbg.inputs.kernel_names import KernelNames
from tests.support.state import Streams, make_workspace
from tests.support.traces import names, write_trace


@pytest.fixture
def cli(capsys):
    """Run a command line on a kernel; return its status, its answer (parsed if it is JSON), and its
    errors.
    """

    def cli(kernel, *words):
        status = main(words, open_target=lambda _options: kernel.target)
        out, err = capsys.readouterr()
        return status, json.loads(out) if "--json" in words else out, err

    return cli


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def named_workspace(streams, monkeypatch):
    """A workspace that names the PCs of made-up functions."""
    workspace = make_workspace(streams, monkeypatch)
    known = workspace.inputs.kernel.names
    known.locations, known.awaited_table = names(), None
    monkeypatch.setattr(KernelNames, "are_known", True)
    return workspace


@pytest.fixture
def trace(tmp_path):
    """Write a trace file; return its name as a buffer."""
    return lambda name, words, mode="TRACE_PC", **header: write_trace(
        tmp_path / name, words, mode, **header
    )
