# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collected coverage: trace files, and the Python face of the native collector."""
