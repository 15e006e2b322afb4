# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is made from the command table: the manual page, completions for shells, the command reference.

``python -m docs.generate`` writes them, ``python -m docs.generate --check`` tells whether they are current. They are kept in
the repository, because packages ship them and a build shouldn't need what makes them.
"""
