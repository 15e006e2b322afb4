# SPDX-License-Identifier: LGPL-2.1-or-later
"""The HTML report of coverage."""
