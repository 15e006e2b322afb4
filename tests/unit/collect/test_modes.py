# SPDX-License-Identifier: LGPL-2.1-or-later
"""The modes that each generation offers, and their numbers: some mean different things (kcov-abi.md
4, 8.6).
"""

import pytest

from kcovdbg._native import lib
from kcovdbg.collect.requests import find_mode, mode_names, request_number
from kcovdbg.errors import UsageError
from kcovdbg.walk.layout import detect_layout
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import ROWS

ENABLE = 0x6364
PLAIN = {"pc": (ENABLE, 0)}
COMPARED = {**PLAIN, "cmp": (ENABLE, 1)}
# By row, the modes with request and argument. UNIQUE_PC's argument is the length of its bitmap.
OFFERED = {row.name: COMPARED for row in ROWS} | {
    # Words of 32 bits aren't collected.
    "E0": {},
    "E1": PLAIN,
    "J": {
        **COMPARED,
        "uniq-pc": (ENABLE, 2),
        "uniq-edge": (ENABLE, 4),
        "uniq-pc-edge": (ENABLE, 6),
        "uniq-cmp": (ENABLE, 8),
    },
    "X1": {**COMPARED, "pc-ext": (ENABLE, 2)},
    "X2": {**COMPARED, "pc-ext": (ENABLE, 2)},
    "D2": {**COMPARED, "dataflow": (0x6464, 0)},
    "P1": {**COMPARED, "unique-pc": (0x80086367, 0)},
    "P2-P4": {**COMPARED, "unique-pc": (0x40086367, 0)},
    # Its mode of the same name takes another initialisation, and its buffer has no count: it isn't
    # offered.
    "L": COMPARED,
    # Its request has the number of KCOV_UNIQUE_ENABLE.
    "R": COMPARED,
}


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_offered(row):
    features = detect_layout(Kernel(row).target).generation.features
    for name in mode_names():
        if name in OFFERED[row.name]:
            mode = find_mode(name, features)
            assert (request_number(mode.request.ioctl), mode.request.argument) == OFFERED[row.name][
                name
            ]
        else:
            with pytest.raises(UsageError) as caught:
                find_mode(name, features)
            if row.name != "E0":
                assert set(caught.value.hint.removeprefix("it has ").split(", ")) == set(
                    OFFERED[row.name]
                )


def test_requests():
    assert lib.kcovdbg_request(b"c", b"r", 1, 8) == 0x80086301
    assert lib.kcovdbg_request(b"c", b"r", 1, 4) == 0x80046301
    assert lib.kcovdbg_request(b"c", b"\0", 101, 0) == 0x6365
    assert lib.kcovdbg_request(b"c", b"w", 102, 24) == 0x40186366
