# SPDX-License-Identifier: LGPL-2.1-or-later
"""Bench: kcovdbg beside what a user would run instead, as ratios of one run.

``python -m tests.bench`` prints them.
"""
