# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes with the KCOV structures of generations that no kernel at hand has: compiled with their
definitions, inspected through real debug info, and held against what the process says of itself."""
