# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many dumps, and a syzkaller manager's crash directories."""
