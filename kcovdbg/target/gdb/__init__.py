# SPDX-License-Identifier: LGPL-2.1-or-later
"""GDB as a target; besides frontends/gdb the only modules that import it."""
