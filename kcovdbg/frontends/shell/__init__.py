# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interactive shell and its full-screen views."""
