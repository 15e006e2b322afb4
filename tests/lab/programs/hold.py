# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collects briefly in each mode, writes each trace to MODE.kcov, and keeps the buffers open until
it is killed.

Arguments: the size of a buffer, and modes. Prints a line for each.
"""

import json
import os
import sys
import time

import kcovdbg.collect
from kcovdbg.abi.generations import Feature
from kcovdbg.collect.trace_writer import make_header, write_trace

size, *modes = sys.argv[1:]
known = {Feature.COMPARISONS, "ext-records", "unique-bitmap", "unique-maps"}
held = []
for mode in modes:
    trace = kcovdbg.collect.Trace(mode, size=int(size), features=known)
    with trace:
        os.getppid()
        os.stat("/proc/self")  # noqa: PTH116 - it makes one system call, and Path.stat() may make more
    write_trace(f"{mode}.kcov", trace.buffer, make_header(trace.buffer, pid=os.getpid()))
    held.append(trace)
for mode, trace in zip(modes, held, strict=True):
    words = [
        None if buffer is None else buffer.words.tolist() for buffer in (trace.buffer, trace.edges)
    ]
    print(
        json.dumps(
            {"mode": mode, "pid": os.getpid(), "fd": trace.fd, "words": words[0], "edges": words[1]}
        )
    )
sys.stdout.flush()
os.close(1)
time.sleep(100000)
