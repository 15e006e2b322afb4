# SPDX-License-Identifier: LGPL-2.1-or-later
"""Members of a State."""

import pytest

from kcovdbg.model.state import Part, State


def test_a_member_of_a_part_that_was_not_asked_for_names_the_part():
    state = State(None, {"current": {0: 1}}, parts=Part.CURRENT)
    assert state.current == {0: 1}
    for name, part in (
        ("tasks", Part.TASKS),
        ("all_tasks", Part.ALL_TASKS),
        ("proof_problem", Part.PROOF),
    ):
        with pytest.raises(LookupError, match=part.name):
            getattr(state, name)
    with pytest.raises(AttributeError):
        state.no_such_member  # noqa: B018
