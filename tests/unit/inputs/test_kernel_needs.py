# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands need of a kernel is checked before they run."""

import pytest

from kcovdbg.console.command import Need
from kcovdbg.console.runner import find_command, make_context
from kcovdbg.console.writer import Format
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.table_cache import TableBuild
from tests.support.state import make_target, make_workspace
from tests.support.stub import make_stub

AWAITED = make_stub(TableBuild, find=lambda: None)


@pytest.fixture
def context(streams, monkeypatch):
    workspace = make_workspace(streams, monkeypatch, target=make_target(lines=None))
    command, args = find_command(workspace, ["help"])
    return make_context(workspace, command, args, workspace.terminal(), Format.TEXT)


@pytest.mark.parametrize("need", [Need.NAMES, Need.POINTS])
def test_a_kernel_without_table(context, need):
    context.kernel.names.awaited_table = AwaitedTable()
    context.require(Need.KERNEL)
    with pytest.raises(CapabilityError) as caught:
        context.require(need)
    assert "-s VMLINUX" in caught.value.hint
    awaited = AwaitedTable(build=AWAITED)
    # It was waited for: a command goes on without it.
    awaited.was_awaited = True
    context.kernel.names.awaited_table = awaited
    context.require(need)
