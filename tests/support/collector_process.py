# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg`` in a process of its own, with a fake device for the collector and without a
kernel.
"""

import sys

from kcovdbg.collect import command_run as running
from kcovdbg.errors import TargetError
from kcovdbg.frontends.cli import main
from tests.support.fake_kcov import FakeKcov


def no_target(_options):
    raise TargetError("no kernel")


def run():
    running.collect_command = FakeKcov().collect_command
    return main(sys.argv[1:], open_target=no_target)


if __name__ == "__main__":
    sys.exit(run())
