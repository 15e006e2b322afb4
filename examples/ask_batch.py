#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Query a data set that ``kcovdbg batch`` wrote, with DuckDB (``pip install duckdb``).

kcovdbg batch -e check -e remote -e tasks -s vmlinux dumps/*.zst -o state
kcovdbg batch -e 'top {}' -s vmlinux traces/*.kcov -o state
examples/ask_batch.py state leaked
examples/ask_batch.py state handles
examples/ask_batch.py state hit do_sys_open
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import duckdb

# Objects and buffers to which nothing refers (X2, X3), or fewer references than the kernel counts
# (K1).
LEAKED = """
    SELECT dump, object, rule, message
    FROM check_rows
    WHERE rule IN ('K1', 'X2', 'X3')
    ORDER BY dump, object
"""
# A handle can be registered once per machine. Which are registered on most machines, and always by
# the same program?
HANDLES = """
    SELECT handle, count(DISTINCT dump) AS dumps,
        count(DISTINCT comm) AS programs, any_value(comm) AS program
    FROM remote_rows
    GROUP BY handle
    ORDER BY dumps DESC, programs DESC, handle
    LIMIT 20
"""
HIT = """
    SELECT dump, sum("count") AS records, count(*) AS pcs
    FROM top_rows
    WHERE "function" = ?
    GROUP BY dump
    ORDER BY records DESC, dump
"""
QUESTIONS = {"leaked": LEAKED, "handles": HANDLES, "hit": HIT}


def open_rows(folder: Path) -> duckdb.DuckDBPyConnection:
    """Create a view for the rows of each command: ``tasks_rows``, ``check_rows`` and so on."""
    connection = duckdb.connect()
    for rows in sorted(folder.glob("command=*")):
        name = rows.name.removeprefix("command=")
        connection.read_parquet(str(rows / "*.parquet"), union_by_name=True).create_view(
            f"{name}_rows"
        )
    return connection


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[2] not in QUESTIONS:
        print(f"usage: {sys.argv[0]} DIR {'|'.join(QUESTIONS)} [FUNCTION]", file=sys.stderr)
        return 2
    folder, question, *arguments = sys.argv[1:]
    try:
        answer = open_rows(Path(folder)).execute(QUESTIONS[question], arguments)
    except duckdb.Error as error:
        print(f"{folder}: {error}", file=sys.stderr)
        return 2
    print("\t".join(column[0] for column in answer.description))
    for row in answer.fetchall():
        print("\t".join("-" if value is None else str(value) for value in row))
    return 0


if __name__ == "__main__":
    # End quietly if the output is piped to a program that closes it, such as head.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
