# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of property tests."""

from hypothesis import settings

# No test depends on how busy the machine is.
settings.register_profile("kcovdbg", deadline=None)
settings.load_profile("kcovdbg")
