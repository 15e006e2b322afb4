# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands as tools of the Model Context Protocol; only ``server`` imports the protocol's
package.
"""
