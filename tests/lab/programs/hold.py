# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collects briefly in each mode, writes each trace to MODE.kcov, and keeps the buffers open until it is killed.

Arguments: a folder for the files, and modes. Prints a line for each.
"""

import json
import os
import sys
import time

import kcovdbg.collect
from kcovdbg.collect.trace_writer import make_header, write_trace

folder, *modes = sys.argv[1:]
held = []
for mode in modes:
    trace = kcovdbg.collect.Trace(mode, size=1 << 14)
    with trace:
        os.getppid()
        os.stat("/proc/self")  # noqa: PTH116 - it makes one system call, and Path.stat() may make more
    write_trace(f"{folder}/{mode}.kcov", trace.buffer, make_header(trace.buffer, pid=os.getpid()))
    held.append(trace)
for mode, trace in zip(modes, held, strict=True):
    print(json.dumps({"mode": mode, "pid": os.getpid(), "fd": trace.fd, "count": trace.buffer.count}))
sys.stdout.flush()
os.close(1)
time.sleep(3600)
