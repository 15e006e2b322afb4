# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a command is declared, run and shown.

A command declares its arguments, needs and columns (:mod:`.command`, :mod:`.argument`,
:mod:`.column`); :mod:`.runner` parses a line, runs the handler and pipes or redirects what it
returns, and :mod:`.renderable` with :mod:`.writer` turn that into text, JSON or CSV.
:mod:`.context` holds the target, its names and the user's settings between commands. No command is
known here.
"""
