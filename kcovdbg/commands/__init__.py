# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands. One is an entry in a module of its own, and its name in this list."""

from __future__ import annotations

from kcovdbg.commands.areas import AREAS
from kcovdbg.commands.batch import BATCH
from kcovdbg.commands.buffer import BUFFER
from kcovdbg.commands.check import CHECK
from kcovdbg.commands.collect import COLLECT
from kcovdbg.commands.command import CommandTable
from kcovdbg.commands.diff import DIFF
from kcovdbg.commands.doctor import DOCTOR
from kcovdbg.commands.export import EXPORT
from kcovdbg.commands.gdb import GDB, GDB_PATH
from kcovdbg.commands.help import HELP
from kcovdbg.commands.info import INFO
from kcovdbg.commands.jobs import JOBS
from kcovdbg.commands.keep import KEEP
from kcovdbg.commands.last import LAST
from kcovdbg.commands.objects import OBJECTS
from kcovdbg.commands.percpu import PERCPU
from kcovdbg.commands.points import POINTS
from kcovdbg.commands.remote import REMOTE
from kcovdbg.commands.report import REPORT
from kcovdbg.commands.slice import SLICE
from kcovdbg.commands.source import SOURCE
from kcovdbg.commands.sym import SYM
from kcovdbg.commands.tasks import TASKS
from kcovdbg.commands.top import TOP
from kcovdbg.commands.tree import TREE
from kcovdbg.commands.view import VIEW
from kcovdbg.commands.watch import WATCH
from kcovdbg.commands.why import WHY

COMMANDS = CommandTable(
    (
        INFO,
        TASKS,
        OBJECTS,
        REMOTE,
        AREAS,
        PERCPU,
        CHECK,
        WHY,
        BUFFER,
        VIEW,
        LAST,
        TOP,
        DIFF,
        SOURCE,
        POINTS,
        TREE,
        SYM,
        KEEP,
        COLLECT,
        JOBS,
        EXPORT,
        REPORT,
        SLICE,
        BATCH,
        WATCH,
        DOCTOR,
        GDB,
        GDB_PATH,
        HELP,
    )
)
"""Every command, in the order of help."""
