# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg`` in a process of its own, with a fake device for the collector and without a kernel."""

import sys
from dataclasses import replace

from kcovdbg.collect import command_run as running
from kcovdbg.errors import TargetError
from kcovdbg.frontends.cli import main
from tests.support.fake_kcov import FIOCLEX, FakeKcov


def _no_target(_options):
    raise TargetError("no kernel")


def run():
    fake = FakeKcov()
    plain = running.collect_command

    def collect_command(request, find_holder=None):
        return plain(replace(request, path="/fake", device=fake.device, enable_request=FIOCLEX), find_holder)

    running.collect_command = collect_command
    return main(sys.argv[1:], open_target=_no_target)


if __name__ == "__main__":
    sys.exit(run())
