# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where bytes come from: the Target protocol and its implementations."""
