# SPDX-License-Identifier: LGPL-2.1-or-later
"""The doubles of tests/support have the attributes and the signatures of the classes that they replace."""

import pytest

from kcovdbg.target import protocol
from tests.support import memory_target
from tests.support.stub import find_drift, make_stub

PAIRS = (
    (memory_target.MemoryTarget, protocol.Target),
    (memory_target.MemoryVmas, protocol.VmaSource),
    (memory_target.MemoryVmalloc, protocol.VmallocSource),
    (memory_target.MemorySlab, protocol.SlabSource),
    (memory_target.MemoryStacks, protocol.StackSource),
)


@pytest.mark.parametrize(("double", "real"), PAIRS, ids=[double.__name__ for double, _ in PAIRS])
def test_doubles_are_what_they_stand_for(double, real):
    assert find_drift(double, real) == []


class Real:
    """Stands still."""

    declared: int

    def __init__(self):
        self.assigned = 1

    @property
    def computed(self):
        return 2

    def method(self, one, two=2, *, three):
        return one, two, three


def test_drift_is_found():
    class Double:
        declared = assigned = 1

        def method(self, one, three):
            return one, three

    found = find_drift(Double, Real)
    assert len(found) == 2
    assert "computed" in found[0]
    assert "method" in found[1]


def test_a_stub_has_only_what_the_class_has():
    stub = make_stub(Real, declared=3, assigned=4, computed=5, method=lambda one, *, three: (one, three))
    assert (stub.declared, stub.assigned, stub.computed, stub.method(1, three=3)) == (3, 4, 5, (1, 3))
    with pytest.raises(TypeError, match="renamed"):
        make_stub(Real, renamed=1)
    with pytest.raises(TypeError, match="method"):
        make_stub(Real, method=lambda one: one)
    with pytest.raises(TypeError, match="method"):
        make_stub(Real, method=lambda: None)
