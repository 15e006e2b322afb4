# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines of a patch in the page of ``report``, in a browser."""

import pytest

from tests.integration.test_report_browser import CONTRAST
from tests.integration.test_two_builds import VALUES, ask, images
from tests.support.browser import Browser, find_browser
from tests.support.two_builds import AFTER, BEFORE, build_program

# Each row with a tag of the program: sign, words, the tag.
ROWS = """
[...document.querySelectorAll('#changes tbody tr')]
  .map((row) => [row.querySelector('.mark').textContent, row.querySelector('.covered').textContent,
                 (/hit\\("(.*?)"\\)/.exec(row.querySelector('.code').textContent) || [])[1]])
  .filter((row) => row[2])
"""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Options that name both builds, and a trace of each with what it executed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        programs = [
            build_program(tmp_path_factory.mktemp("two") / name, files) for name, files in (("b", BEFORE), ("a", AFTER))
        ]
        yield images(*programs), [program.run("screen", *VALUES) for program in programs]


@pytest.mark.skipif(find_browser() is None, reason="no browser is installed: apt-get install chromium")
def test_changed_lines_in_a_browser(traces, tmp_path):
    options, ((left, executed_before), (right, executed_after)) = traces
    page = tmp_path / "page.html"
    assert ask(*options, "report", left, right, "-o", page)[0] == 0
    profile = tmp_path / "profile"
    profile.mkdir()
    browser = Browser(profile)
    try:
        for dark, width in ((False, 1300), (True, 390)):
            browser.look(width=width, height=844, dark=dark)
            browser.open(page)
            rows = browser.run(ROWS)
            assert {"added", "removed", "high", "new answer"} <= {tag for _, _, tag in rows}
            for sign, words, tag in rows:
                if sign == "+":
                    assert words == ("covered after" if tag in executed_after else "never covered")
                elif sign:
                    assert words == ("covered before" if tag in executed_before else "never covered")
            assert browser.run(CONTRAST) == []
            assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
            # The lines are seen at once, not behind a click.
            assert browser.run("document.querySelector('#changes tbody tr').checkVisibility()")
        assert browser.complaints == []
    finally:
        browser.close()
