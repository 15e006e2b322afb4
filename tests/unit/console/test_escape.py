# SPDX-License-Identifier: LGPL-2.1-or-later
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.console.terminal import THEME, Color, Painter, wants_color
from kcovdbg.console.text import elide, elide_start, escape, escape_surrogates, pad, text_width

# Every code point, lone surrogates too.
anything = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("syz-executor.0", "syz-executor.0"),
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("a\nb\tc\rd\0", r"a\x0ab\x09c\x0dd\x00"),
        ("\x7f\x9b2J", r"\x7f\x9b2J"),
        ("abc\u202etxt.exe\u2066", r"abc\u202etxt.exe\u2066"),
        ("\u200e\u200f\u200b\ufeff", r"\u200e\u200f\u200b\ufeff"),
        ("\u2028", r"\u2028"),
        ("\udc9f", r"\x9f"),
        ("\ud800", r"\ud800"),
        ("\U000e0041\ufe0f", r"\U000e0041\ufe0f"),
        ("日本語 é ß", "日本語 é ß"),
        (r"already \x1b", r"already \x1b"),
        ("", ""),
    ],
)
def test_escape(text, shown):
    assert escape(text) == shown


@given(anything)
def test_nothing_a_terminal_obeys_gets_through(text):
    shown = escape(text)
    assert all(
        unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown
    )
    assert not any(
        0x202A <= ord(character) <= 0x202E or 0x2066 <= ord(character) <= 0x2069
        for character in shown
    )
    shown.encode()


@given(anything)
def test_escaping_twice_changes_nothing(text):
    assert escape(escape(text)) == escape(text)


@given(st.lists(st.tuples(st.sampled_from([*THEME, "unknown", ""]), anything)))
def test_painting_lets_only_our_own_escapes_through(line):
    plain = Painter().paint(line)
    assert plain == escape("".join(text for _, text in line)).rstrip(" ")
    colored = Painter(THEME).paint(line)
    for code in ("\x1b[0m", *(f"\x1b[{code}m" for code in THEME.values() if code)):
        colored = colored.replace(code, "")
    assert colored == plain or not plain.strip(" ")
    assert "\x1b" not in colored


def test_paint():
    line = (("error", "bad"), ("", " and "), ("pid", "41"), ("address", "  "))
    assert Painter().paint(line) == "bad and 41"
    assert Painter({"error": "31"}).paint(line) == "\x1b[31mbad\x1b[0m and 41"


@given(anything)
def test_surrogates_are_all_that_json_loses(text):
    shown = escape_surrogates(text)
    shown.encode()
    if all(not 0xD800 <= ord(character) <= 0xDFFF for character in text):
        assert shown == text


@pytest.mark.parametrize(
    ("color", "terminal", "environment", "wanted"),
    [
        (Color.AUTO, True, {}, True),
        (Color.AUTO, False, {}, False),
        (Color.AUTO, True, {"NO_COLOR": "1"}, False),
        (Color.AUTO, True, {"NO_COLOR": ""}, True),
        (Color.AUTO, True, {"TERM": "dumb"}, False),
        (Color.ALWAYS, False, {"NO_COLOR": "1", "TERM": "dumb"}, True),
        (Color.NEVER, True, {}, False),
    ],
)
def test_wants_color(color, terminal, environment, wanted):
    assert wants_color(color, terminal=terminal, environment=environment) is wanted


def test_width():
    assert text_width("abc") == 3
    assert text_width("日本") == 4
    assert text_width("e\u0301") == 1
    assert pad("日本", 6) == "日本  "
    assert pad("日本", 6, right=True) == "  日本"
    assert elide("日本語", 5) == "日本…"
    assert elide("日本語", 4) == "日…"
    assert elide("abcdef", 4) == "abc…"
    assert elide_start("/a/b/c/d.c", 6) == "…c/d.c"
    assert elide("abc", 0) == ""


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"))).map(escape), st.integers(0, 40))
def test_elided_text_fits(text, width):
    for shorten in (elide, elide_start):
        shown = shorten(text, width)
        assert text_width(shown) <= width
        if text_width(text) <= width:
            assert shown == text
