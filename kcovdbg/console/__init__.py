# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a command is declared, run and shown."""
