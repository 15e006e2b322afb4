# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answer for many dumps: a directory of them, and the crash directories of syzkaller's manager.

Each dump has a process of its own with limits of time and memory. Reads the dumps, the console's
logs and the reports beside them; writes one data set and one folder of answers for each crash,
never below an input. Costs as much as the commands on each dump, divided by the number of
processes.
"""
