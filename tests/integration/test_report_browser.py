# SPDX-License-Identifier: LGPL-2.1-or-later
"""The page that ``report`` writes, in a browser: keys, scrolling, colours, sizes; nothing is
complained about or loaded.
"""

from array import array

import pytest

from kcovdbg.check.runner import Report
from kcovdbg.console.html import PageSection, page_lines
from kcovdbg.console.runner import run_line
from kcovdbg.model.finding import Cause, Certainty, Finding, Severity
from kcovdbg.records.alignment import AlignedPart
from kcovdbg.report import command as report_command
from kcovdbg.report.trace import Point, text_chunks, trace_markup
from tests.support.browser import CONTRAST
from tests.support.state import Streams, make_workspace, set_options
from tests.support.traces import names, pc, write_trace

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m'\"&"
WORDS = [pc(number % 7, number % 5) for number in range(300)]
# Differences at rows 30, 133 and 200.
OTHER = [*WORDS[:30], pc(9), pc(9, 1), *WORDS[33:133], *[pc(8)] * 4, *WORDS[133:196], *WORDS[200:]]

FIRST = (
    "[...document.querySelectorAll('.shown')].map((rows) => "
    "Number(rows.firstChild.getAttribute('aria-rowindex')))"
)
CURRENT = """[...document.querySelectorAll('[aria-selected="true"]')].map((row) => Number(row.getAttribute('aria-rowindex')) - 1)"""
POSITION = "document.getElementById('position').textContent"


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Write the pages once."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "dir").mkdir()
    for number in range(2):
        (folder / f"dir/file_{number}.c").write_text(
            f'/* {HOSTILE[:9]} */ static const int a = 3; // "x"\n' * 150
        )
    with pytest.MonkeyPatch.context() as patch:
        streams = Streams()
        workspace = make_workspace(streams, patch)
        workspace.inputs.kernel.names.locations, workspace.inputs.kernel.names.awaited_table = (
            names(),
            None,
        )
        set_options(workspace.inputs.kernel, source_folders=(str(folder),))
        causes = (Cause(HOSTILE, HOSTILE, Certainty.UNSURE, HOSTILE),)
        found = [
            Finding("K1", severity, "kcov 0x1", HOSTILE, (("refcount", "3"),), causes=causes)
            for severity in Severity
        ]
        checked = Report(tuple(found), applied=48, skipped=(), remarks=(HOSTILE,))
        patch.setattr(report_command, "check", lambda *_args, **_options: checked)
        for name, words in (("a", WORDS), ("b", OTHER)):
            write_trace(folder / name, words, comm=HOSTILE)
        for out, what in (
            ("two", f"file:{folder}/a file:{folder}/b"),
            ("one", f"file:{folder}/a"),
            ("none", ""),
        ):
            assert run_line(workspace, f"report {what} -o {folder}/{out}.html") == 0
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1300, 390])
@pytest.mark.parametrize("name", ["two", "one", "none"])
def test_looks(name, width, dark, page, reports):
    browser = page(reports / f"{name}.html", width=width, height=844, dark=dark)
    browser.run(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; })"
    )
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    assert browser.run(CONTRAST) == []
    assert browser.run("document.querySelectorAll('img').length") == 0
    # Tables say that they are wider than the page exactly where they are. Those of source are laid
    # out when they are seen.
    boxes = "[...document.querySelectorAll('section:not(#source) .scroll')]"
    assert browser.run(
        f"{boxes}.every((box) => box.classList.contains('wide') === (box.scrollWidth > "
        f"box.clientWidth + 1))"
    )
    assert width > 390 or browser.run(f"{boxes}.some((box) => box.classList.contains('wide'))")


def test_difference_keys(page, reports):
    browser = page(reports / "two.html")
    rows = []
    for key in "nnnnppp":
        browser.press(key)
        rows.append((browser.run(CURRENT), browser.run(POSITION)))
    found = [row for row, _ in rows]
    assert found == [[30, 30], [133, 133], [200, 200], [200, 200], [133, 133], [30, 30], [30, 30]]
    assert rows[0][1] == "row 31 of 304, difference 1 of 3"
    assert (rows[3][1], rows[6][1]) == ("no further difference", "no earlier difference")
    # The buttons do the same, also under a finger.
    browser.run("document.getElementById('next').click()")
    browser.settle()
    assert browser.run(CURRENT) == [133, 133]
    assert browser.run("document.getElementById('detail').textContent").startswith("right [132] ")


def test_moving_keys(page, reports):
    browser = page(reports / "two.html")
    browser.run("document.getElementById('pane1').focus()")
    browser.press("j", "j", "ArrowDown", "k")
    assert browser.run(CURRENT) == [2, 2]
    browser.press("End")
    assert browser.run(CURRENT) == [303, 303]
    browser.press("Home", "PageDown")
    top = browser.run(FIRST)
    assert top[0] == top[1] > 1
    assert (
        browser.run("document.activeElement.getAttribute('aria-activedescendant')")
        == f"row1-{browser.run(CURRENT)[0]}"
    )
    browser.press("/")
    assert browser.run("document.activeElement.id") == "find"
    browser.press("f", "n", "_", "9", "Enter")
    assert browser.run(CURRENT) == [30, 30]


def test_panes_scroll_together(page, reports):
    browser = page(reports / "two.html")
    for pane, other in ((0, 1), (1, 0)):
        browser.run(f"document.getElementById('pane{pane}').scrollTop = {1000 + pane * 500}")
        browser.settle()
        assert browser.run(f"document.getElementById('pane{other}').scrollTop") == 1000 + pane * 500
        first = browser.run(FIRST)
        assert first[0] == first[1]
        assert abs(first[0] - 1 - (1000 + pane * 500) / 22) <= 1


def test_panes_show_whole_places_on_a_small_screen(page, reports):
    browser = page(reports / "two.html", width=1200, height=844)
    places = """[0, 1].flatMap((number) => {
      const box = document.getElementById(`pane${number}`), end = box.getBoundingClientRect().left + box.clientWidth;
      return [...box.querySelectorAll(".where")].map((place) => {
        const range = document.createRange();
        range.selectNodeContents(place);
        return [place.textContent.length, range.getBoundingClientRect().right <= end];
      });
    })"""
    found = browser.run(places)
    assert max(length for length, _ in found) >= 16
    assert all(shown for _, shown in found)


def write_page(folder, points, records, parts):
    """Write a page of traces alone."""
    markup = trace_markup(["a", "b"][: len(records)], text_chunks(points), records, parts)
    path = folder / "long.html"
    path.write_text("\n".join(page_lines("long", "", [PageSection("records", "Records", markup)])))
    return path


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("sides", [1, 2])
def test_line_numbers_stay_visible(width, sides, page, tmp_path):
    points = [
        Point("function", f"./arch/x86/{'long/' * folders}file.c:{98765 + folders}")
        for folders in range(20)
    ]
    records = [array("I", range(20))] * sides
    path = write_page(
        tmp_path, points, records, [AlignedPart(range(20), range(20), True)] if sides == 2 else []
    )
    browser = page(path, width=width, height=844, touch=width == 390)
    places = browser.run("""[...document.querySelectorAll(".rows")].flatMap((box) => {
      const end = box.getBoundingClientRect().left + box.clientWidth;
      return [...box.querySelectorAll(".where")].map((place) => {
        const range = document.createRange(), line = place.lastChild;
        range.selectNodeContents(line);
        const {left, right} = range.getBoundingClientRect();
        return [place.textContent, left < right && right <= end];
      });
    })""")
    assert len(places) >= 10
    assert all(shown for _, shown in places)


def test_lines_of_source_stay_when_it_is_scrolled(page, reports):
    browser = page(reports / "two.html", width=390, height=844, touch=True)
    browser.run("document.querySelector('#source details').open = true")
    browser.settle()
    found = browser.run("""(() => {
      const box = document.querySelector("#source .scroll");
      box.scrollIntoView();
      box.scrollLeft = 1000;
      const line = box.querySelector("td.line").getBoundingClientRect();
      return [box.scrollLeft, line.left - box.getBoundingClientRect().left];
    })()""")
    assert found[0] > 0
    assert 0 <= found[1] < 20


def test_panes_stand_below_each_other_on_a_phone(page, reports):
    browser = page(reports / "two.html", width=390, height=844, touch=True)
    boxes = browser.run(
        "[0, 1].map((n) => document.getElementById(`pane${n}`).getBoundingClientRect().toJSON())"
    )
    assert boxes[0]["bottom"] < boxes[1]["top"]
    browser.press("n")
    assert browser.run(CURRENT) == [30, 30]


def test_keyboard_reaches_everything(page, reports):
    browser = page(reports / "two.html")
    browser.press("Tab")
    assert browser.run("document.activeElement.className") == "skip"
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    stops = browser.run(
        "[...document.querySelectorAll('[tabindex=\"0\"]')].map((e) => e.ariaLabel || "
        "e.getAttribute('aria-labelledby'))"
    )
    assert stops
    assert all(stops)


def test_a_million_records(page, tmp_path):
    """The sides differ in one near the end."""
    count = 1 << 20
    left = array("I", (number % 50000 for number in range(count)))
    right = left[:]
    right[1_000_000] = 7
    points = [Point(f"fn_{number}", "a.c") for number in range(50000)]
    spans = range(1_000_000), range(1_000_000, 1_000_001), range(1_000_001, count)
    parts = [AlignedPart(span, span, len(span) > 1) for span in spans]
    browser = page(write_page(tmp_path, points, [left, right], parts))
    assert browser.run("document.querySelectorAll('.row').length") < 200
    browser.press("n")
    assert browser.run(CURRENT) == [1_000_000, 1_000_000]
    assert browser.run(POSITION) == "row 1000001 of 1048576, difference 1 of 1"
    browser.run("document.getElementById('pane0').focus()")
    # Here a row is less than a pixel of the scroll bar: keys move by rows all the same.
    browser.press(*["j"] * 60)
    assert browser.run(CURRENT) == [1_000_060, 1_000_060]
    browser.run("document.getElementById('pane1').scrollTop = 1e9")
    browser.settle()
    assert (
        browser.run(
            "document.querySelector('#pane0 .shown').lastChild.getAttribute('aria-rowindex')"
        )
        == "1048576"
    )
    browser.press("Home")
    assert browser.run(FIRST) == [1, 1]


@pytest.mark.parametrize("has_text", [True, False])
def test_what_is_packed_opens_on_demand(page, reports, tmp_path, monkeypatch, has_text):
    streams = Streams()
    workspace = make_workspace(streams, monkeypatch)
    workspace.inputs.kernel.names.locations, workspace.inputs.kernel.names.awaited_table = (
        names(),
        None,
    )
    monkeypatch.setattr(report_command, "_check", lambda _context: iter(()))
    set_options(workspace.inputs.kernel, source_folders=(str(reports),) if has_text else ())
    assert run_line(workspace, f"report file:{reports}/a -o {tmp_path}/whole.html") == 0
    monkeypatch.setattr(report_command, "MAX_LINES", 0)
    monkeypatch.setattr("kcovdbg.report.trace._IN_CHUNK", 7)
    assert run_line(workspace, f"report file:{reports}/a -o {tmp_path}/packed.html") == 0
    listings = (
        "[...document.querySelectorAll('table.source tr')].map((row) => "
        "[row.className, [...row.cells].map((cell) => [cell.className, cell.title, "
        "cell.textContent])])"
    )
    details = (
        "[...Array(20).keys()].map((row) => { document.querySelector(`#row0-${row}`).click(); "
        "return [...document.querySelectorAll(`#row0-${row} > *, #detail div`)].map((part) => "
        "part.textContent); })"
    )
    whole = page(tmp_path / "whole.html")
    expected = whole.run(listings), whole.run(details)
    whole.requests.clear()
    browser = page(tmp_path / "packed.html")
    rows = "document.querySelectorAll('table.source tr').length"
    assert browser.run(rows) == 0
    browser.run(
        "document.querySelectorAll('details.file').forEach((file) => { file.open = true; })"
    )
    files = (
        "document.querySelectorAll('table.source').length === "
        "document.querySelectorAll('details.file').length"
    )
    browser.wait(files)
    assert browser.run("document.querySelectorAll('tr.c-all').length") > 0
    assert browser.run("document.querySelectorAll('img').length") == 0
    shown = "document.querySelector('.row .function').textContent"
    browser.wait(f"{shown} !== '…'")
    assert browser.run(shown).startswith("fn_")
    assert (browser.run(listings), browser.run(details)) == expected
    browser.press("/", "f", "n", "_", "6", "Enter")
    browser.wait(f"{POSITION}.startsWith('row')")
    assert browser.run(CURRENT) == [20]


def test_links_of_a_phone_lead_to_their_sections(page, reports, tmp_path):
    """Also behind hundreds of files, whose paths need more than one line there."""
    text = (reports / "one.html").read_text()
    start = text.index('<details class="file"')
    end = text.index("</details>", start) + len("</details>")
    summary = (
        "<details class='file'><summary><span class='path'>"
        + "a/very/long/path" * 8
        + ".c</span></summary></details>"
    )
    path = tmp_path / "many.html"
    path.write_text(text[:end] + summary * 300 + text[end:])
    browser = page(path, width=390, height=844, touch=True)
    browser.run("document.documentElement.style.scrollBehavior = 'auto'")
    for section in ("state", "source"):
        browser.run(f"document.querySelector('nav a[href=\"#{section}\"]').click()")
        browser.settle()
        top = browser.run(f"document.getElementById('{section}').getBoundingClientRect().top")
        assert -2 <= top < 844 / 2, section
