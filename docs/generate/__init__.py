# SPDX-License-Identifier: LGPL-2.1-or-later
"""Documentation that is generated from declarations: the manual page, shell completions, the
references of commands and rules.

``python -m docs.generate`` writes the files, ``python -m docs.generate --check`` reports those that
are out of date. They are kept in the repository because packages ship them, and a build should not
need the generators.
"""
