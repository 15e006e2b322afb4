# SPDX-License-Identifier: LGPL-2.1-or-later
# Compiled from native/, where each function is described in its header.
from typing import Any

ffi: Any
lib: Any
