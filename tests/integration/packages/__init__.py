# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is shipped: the source distribution and the wheel, installed into clean environments and tried there."""
