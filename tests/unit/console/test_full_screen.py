# SPDX-License-Identifier: LGPL-2.1-or-later
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.console.full_screen import columns, fit
from kcovdbg.console.text import escape, highlight, text_width

TEXT = st.text(st.sampled_from("abc/_ ←日\x1b\n"), max_size=12)
LINES = st.lists(st.tuples(st.just(""), TEXT), max_size=5)
PARTS = st.lists(
    st.tuples(st.sampled_from(["", "number"]), TEXT, st.sampled_from([0, 0, 3, 8])),
    min_size=1,
    max_size=5,
)


def width_of(line):
    text = "".join(text for _, text in line)
    assert text == escape(text)
    return text_width(text)


@given(LINES, st.integers(1, 60))
def test_lines_fit(line, width):
    assert width_of(fit(line, width)) == width
    assert width_of(fit(line, width, fill=False)) <= width


@given(LINES, st.integers(1, 60))
def test_what_is_cut_says_so(line, width):
    whole = "".join(escape(text) for _, text in line)
    shown = "".join(text for _, text in fit(line, width))
    assert "…" in shown or shown.rstrip() == whole.rstrip()


@given(PARTS, st.integers(1, 60))
def test_columns_fit(parts, width):
    assert width_of(columns(parts, width, fill=True)) == width
    assert width_of(columns(parts, width)) <= width


@given(
    st.lists(
        st.text(max_size=20).filter(lambda text: len(text.splitlines()) < 2 and "\n" not in text),
        max_size=6,
    )
)
def test_highlighting_keeps_lines(lines):
    assert len(highlight(lines, "a.c")) == len(lines)


def test_highlighting():
    (line,) = highlight(['static int x = 5; /* y */ f("z");'], "fs/open.c")
    styles = {text.strip(): style for style, text in line if style}
    assert styles["static"] == "source.keyword"
    assert styles["5"] == "source.number"
    assert styles["/* y */"] == "source.comment"
