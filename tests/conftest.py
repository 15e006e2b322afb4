# SPDX-License-Identifier: LGPL-2.1-or-later
"""What all tests rely on."""

import signal

# Whoever starts the tests in the background of a shell has them ignore C-c, and so every program that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
