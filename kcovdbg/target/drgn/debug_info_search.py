# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where drgn looks for debug info by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence

import drgn

from kcovdbg.user_folder import find_debuginfod_cache

_DEBUGINFOD = "debuginfod"


def load_debug_info(prog: drgn.Program, paths: Sequence[str | os.PathLike[str]]) -> None:
    """Load debug info from files, and from where drgn looks; for root not from another user's cache of debuginfod's client.

    :raises drgn.MissingDebugInfoError: when some is not found.
    """
    enabled = prog.enabled_debug_info_finders()
    if _DEBUGINFOD in enabled and find_debuginfod_cache() is None:
        prog.set_enabled_debug_info_finders([name for name in enabled if name != _DEBUGINFOD])
    prog.load_debug_info(list(paths), default=True)
