# SPDX-License-Identifier: LGPL-2.1-or-later
"""The words of an oops: the formats are those of the kernel's sources."""

import pytest

from kcovdbg.console.command_line import parse_line
from kcovdbg.records.oops_words import find_code_words, parse_words

PC = 0xFFFFFFFF8108CB35


@pytest.mark.parametrize(
    "text",
    [f"{PC:x}", f"{PC:#x}", f"{PC:X}", f"{PC:x},", f"{PC}", f"{PC - (1 << 64)}", f"[<{PC:x}>]", f"[<{PC:016x}>],"],
)
def test_addresses(text):
    (word,) = parse_words(text)
    assert (word.address, word.function) == (PC, None)
    assert word.is_oops is text.startswith("[<")


@pytest.mark.parametrize(
    ("text", "function", "offset", "size", "module", "is_exact"),
    [
        ("func+0x15/0x40", "func", 0x15, 0x40, None, False),
        ("func+0x15", "func", 0x15, None, None, False),
        ("func+21", "func", 21, None, None, False),
        ("func+021", "func", 21, None, None, False),
        ("func", "func", 0, None, None, True),
        ("add", "add", 0, None, None, True),
        ("func+0x0/0x40", "func", 0, 0x40, None, True),
        ("func [mod]", "func", 0, None, "mod", True),
        ("func+0x1/0x2 [mod]", "func", 1, 2, "mod", False),
        ("func+0x1/0x2 [mod 0123abcd]", "func", 1, 2, "mod", False),
        ("(func+0x1/0x2)", "func", 1, 2, None, False),
        ("? func+0x1/0x2", "func", 1, 2, None, False),
        ("RIP: 0010:func+0x15/0x40", "func", 0x15, 0x40, None, True),
        ("0010:func+0x15/0x40,", "func", 0x15, 0x40, None, False),
        ("pc : func+0x15/0x40", "func", 0x15, 0x40, None, True),
        ("lr : func+0x15/0x40", "func", 0x15, 0x40, None, False),
        ("[<ffffffff8108cb35>] ? func+0x15/0x40", "func", 0x15, 0x40, None, False),
        ("func.constprop.0.isra.0+0x15/0x40", "func.constprop.0.isra.0", 0x15, 0x40, None, False),
        ("func.cold+0x15/0x40", "func.cold", 0x15, 0x40, None, False),
    ],
)
def test_functions(text, function, offset, size, module, is_exact):
    (word,) = parse_words(text)
    assert (word.function, word.offset, word.size, word.module) == (function, offset, size, module)
    assert word.is_exact is is_exact


def test_several():
    words = list(parse_words("a+0x1/0x2 [m], b 0x12 ffffffff81000000"))
    assert [(word.function, word.address) for word in words] == [
        ("a", None),
        ("b", None),
        (None, 0x12),
        (None, 0xFFFFFFFF81000000),
    ]


@pytest.mark.parametrize("text", ["zz!", "a b&c", "0xffffffffffffffffff", "99999999999999999999", "a+", "<a>"])
def test_what_is_no_place(text):
    with pytest.raises(ValueError, match=r"\S"):
        list(parse_words(text))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[   12.345678] RIP: 0010:f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.345678][   C0]  ? f.part.0+0x1/0x2", [("f.part.0+0x1/0x2", False)]),
        ("[   12.3][ T101]  f+0x1/0x2 [m]", [("f+0x1/0x2 [m]", False)]),
        ("<4>[   12.3] RIP  [<ffffffff81000000>] f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.3] IP: [<ffffffff81000000>] f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.3] NIP [c000000000001234] f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("[   12.3] LR [c000000000001234] f+0x1/0x2", [("f+0x1/0x2", False)]),
        ("[   12.3] epc : f+0x1/0x2", [("f+0x1/0x2", True)]),
        ("WARNING: CPU: 1 PID: 1 at m/a.c:46 f+0x1/0x2 [m]", [("f+0x1/0x2 [m]", True)]),
        ("BUG: KASAN: use-after-free in f+0x1/0x2", [("f+0x1/0x2", False)]),
        ("mutex at: f+0x1/0x2, g+0x3/0x4", [("f+0x1/0x2", False), ("g+0x3/0x4", False)]),
        ("RIP: 0033:0x455bf0", []),
        ("[   12.3] nothing here", []),
        ("Code: 90 90 <0f> 0b", []),
        ("ffffffff8108cb35", [("ffffffff8108cb35", False)]),
        (" [<ffffffff8108cb35>]", [("[<ffffffff8108cb35>]", False)]),
        (f"f+{'9' * 5000}", []),
        ("  0xffffffff8108cb35,", [("0xffffffff8108cb35", False)]),
        ("", []),
    ],
)
def test_lines(line, found):
    places = find_code_words(line)
    assert [(word.text, word.is_exact) for word in places] == found
    assert all(line[slice(*word.span)] in word.text for word in places)


def test_brackets_are_no_redirection():
    line = parse_line("sym [<ffffffff8108cb35>] > out")
    assert [word.text for word in line.words] == ["sym", "[<ffffffff8108cb35>]"]
    assert line.redirection.path == "out"
