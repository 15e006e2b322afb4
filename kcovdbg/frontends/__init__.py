# SPDX-License-Identifier: LGPL-2.1-or-later
"""The frontends: command line, shell, drgn, GDB, MCP."""
