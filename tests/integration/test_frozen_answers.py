# SPDX-License-Identifier: LGPL-2.1-or-later
"""No answer about a kept dump changes unnoticed."""

from __future__ import annotations

import pytest

from tests.support.frozen_answers import KeptDump, ask, find_changes, list_kept_dumps, read_answers

DUMPS = list_kept_dumps()


@pytest.mark.parametrize("dump", DUMPS, ids=[dump.name for dump in DUMPS])
def test_answers_are_the_kept_ones(dump: KeptDump) -> None:
    """If a change is meant: ``python -m tests.support.frozen_answers``, and say why in the
    commit.
    """
    changes = list(find_changes(read_answers(dump), ask(dump), dump.name))
    assert changes[:20] == []
