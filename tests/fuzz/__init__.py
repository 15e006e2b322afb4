# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damage: what kcovdbg makes of memory that no kernel leaves behind."""
