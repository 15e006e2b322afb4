# SPDX-License-Identifier: LGPL-2.1-or-later
"""The user's view of a buffer beside the kernel's: memory of this process, and a kernel in memory
that changes.
"""

import ctypes
import mmap
import os
import re
from array import array

import pytest

from kcovdbg.abi import record
from kcovdbg.abi.record import CMP, PC
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.kcov import KcovFile
from kcovdbg.records.user_view import compare_views, is_private, read_user_view

SIZE = 4096
PCS = [0xFFFFFFFF81000005 + 16 * index for index in range(SIZE)]


class Memory:
    """One buffer, mapped here, and the kernel's view of it: `before_kernel` and `before_user`
    happen before each look.
    """

    def __init__(self, flags=mmap.MAP_SHARED, codec=PC):
        # Of a file, as KCOV's: the kernel joins anonymous memory with its neighbors.
        file = os.memfd_create("kcov")
        os.truncate(file, SIZE * 8)
        self.pages = mmap.mmap(file, SIZE * 8, flags=flags)
        os.close(file)
        self.words = (ctypes.c_uint64 * SIZE).from_buffer(self.pages)
        self.encoding = record.make_encoding(codec, 8)
        start = ctypes.addressof(self.words)
        self.mapping = KcovFile(os.getpid(), 1, 2, start=start, end=start + SIZE * 8, pgoff=0)
        self.damage = {}
        """Word -> what only the kernel's view has there."""
        self.looks = 0
        self.before_kernel = self.before_user = lambda: None

    def write(self, pcs, count=None):
        self.words[1 : 1 + len(pcs)] = pcs
        self.words[0] = len(pcs) // self.encoding.record_words if count is None else count

    def read_kernel(self):
        self.looks += 1
        self.before_kernel()
        words = array("Q", self.words)
        for index, word in self.damage.items():
            words[index] = word
        capacity = self.encoding.capacity(SIZE, 8)
        count = min(words[0], capacity)
        end = 1 + count * self.encoding.record_words
        return Buffer("fd:1/3", self.encoding, words[1:end], count, words[0], capacity, size=SIZE)

    def compare(self):
        def read_user(kernel):
            self.before_user()
            return read_user_view(os.getpid(), self.mapping, kernel)

        return compare_views(read_user, self.read_kernel)


@pytest.mark.parametrize(
    ("codec", "damage", "numbers"),
    [
        (PC, {}, []),
        (PC, {1235: 0xDEAD}, ["1", "3000", "1234"]),
        (PC, {3000: 0xDEAD}, ["1", "3000", "2999"]),
        (CMP, {133: 0xDEAD}, ["1", "750", "33"]),
        (PC, dict.fromkeys(range(1, 3001), 7), ["1000", "3000", *"01234"]),
        # The count word.
        (PC, {0: 20}, ["3000", "20"]),
    ],
)
def test_what_only_one_side_has(codec, damage, numbers):
    memory = Memory(codec=codec)
    memory.write(PCS[:3000])
    memory.damage = damage
    found = memory.compare()
    assert [re.findall(r"\d+", finding) for finding in found.findings] == (
        [numbers] if numbers else []
    )
    assert list(found.user.words) == PCS[:3000]
    assert (list(found.kernel.words) == PCS[:3000], memory.looks == 1) == (not damage, not damage)


def test_a_collector_that_runs():
    """Records are added between any two looks, and the last one is always on its way: its count is
    there and it isn't.
    """
    memory = Memory()
    count = 0

    def add():
        nonlocal count
        memory.words[count + 1] = PCS[count]
        count += 7
        memory.words[1 : count + 1] = PCS[:count]
        memory.words[count + 1] = 0
        memory.words[0] = count + 1

    memory.before_kernel = memory.before_user = add
    found = memory.compare()
    assert found.findings == ()
    assert found.user.count > 0


def test_a_collector_that_starts_over_again_and_again():
    """A fuzzer runs another program each time: the buffer changes all the time."""
    memory = Memory()
    turn = 0

    def start_over():
        nonlocal turn
        turn += 1
        memory.write([pc + turn % 3 for pc in PCS[: 100 + turn % 2]])

    memory.before_kernel = memory.before_user = start_over
    assert memory.compare().findings == ()
    # A difference that persists is found nevertheless.
    memory.damage = {50: 1}
    memory.before_kernel = memory.before_user = lambda: None
    assert memory.compare().findings


def test_a_count_that_user_space_wrote():
    memory = Memory()
    memory.write(PCS[:30], count=(1 << 64) - 1)
    assert memory.compare().findings == ()


@pytest.mark.parametrize(("flags", "private"), [(mmap.MAP_SHARED, False), (mmap.MAP_PRIVATE, True)])
def test_private_mappings(flags, private):
    memory = Memory(flags)
    assert is_private(os.getpid(), memory.mapping) is private
    assert is_private(os.getpid(), memory.mapping._replace(start=8)) is None
    assert is_private(0, memory.mapping) is None
