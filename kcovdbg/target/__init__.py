# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sources of bytes: the Target protocol and its implementations."""
