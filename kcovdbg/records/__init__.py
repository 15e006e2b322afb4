# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers and traces as data: counted, and read from other tools' files."""
