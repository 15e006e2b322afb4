# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of the kernel's KCOV types."""

from __future__ import annotations

from typing import Final

TASK: Final = "struct task_struct"
KCOV: Final = "struct kcov"
REMOTE: Final = "struct kcov_remote"
AREA: Final = "struct kcov_remote_area"
PERCPU: Final = "struct kcov_percpu_data"
MODE: Final = "enum kcov_mode"
