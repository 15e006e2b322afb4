# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stop a guest at the write that breaks KCOV's state.

Reads the guest's KCOV state for the words to watch, and sets hardware watchpoints on them through a
GDB stub; ``resume`` lets a machine run that was left stopped. While a watchpoint is set, each write
to a watched word stops the machine for some milliseconds. The machine's memory is never changed.
"""
