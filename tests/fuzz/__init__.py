# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fuzzing: kcovdbg on damaged memory and damaged files."""
