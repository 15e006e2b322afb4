# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways in: command line, shell, drgn, GDB."""
