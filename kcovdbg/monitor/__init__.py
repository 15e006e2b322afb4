# SPDX-License-Identifier: LGPL-2.1-or-later
"""Show what happens to KCOV's objects and buffers over time, on the screen or in a recording.

Reads the State of a moving kernel again and again: some milliseconds for each look, without
stopping the machine. A recording is JSON Lines; summary and page work without a kernel.
"""
