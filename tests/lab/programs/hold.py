# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collects a little, writes it to a file, and keeps the buffer for others to look at, until it is killed."""

import json
import os
import sys
import time

import kcovdbg.collect
from kcovdbg.collect.trace_writer import make_header, write_trace

mode, path = sys.argv[1:]
trace = kcovdbg.collect.Trace(mode, size=1 << 14)
with trace:
    os.getppid()
    os.stat("/proc/self")  # noqa: PTH116 - it makes one system call, and Path.stat() may make more
write_trace(path, trace.buffer, make_header(trace.buffer, pid=os.getpid()))
print(json.dumps({"pid": os.getpid(), "fd": trace.fd, "count": trace.buffer.count}), flush=True)
os.close(1)
time.sleep(3600)
