# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the generated files, or tell which aren't current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate.command_pages import write_commands
from docs.generate.completions import complete_in
from docs.generate.manpage import write_manpage

DOCS = Path(__file__).parent.parent

FILES: Mapping[str, Callable[[], str]] = {
    "man/kcovdbg.1": write_manpage,
    "completions/kcovdbg.bash": lambda: complete_in("bash"),
    "completions/_kcovdbg": lambda: complete_in("zsh"),
    "completions/kcovdbg.fish": lambda: complete_in("fish"),
    "commands.md": write_commands,
}
"""What stands in which file under docs/."""


def main() -> int:
    """Return 1 where --check finds a file that isn't current."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, tell what differs")
    args = parser.parse_args()
    stale = [name for name, write in FILES.items() if not _is_current(DOCS / name, write())]
    for name in stale:
        if args.check:
            print(f"docs/{name} isn't what the command table says: run python -m docs.generate", file=sys.stderr)
        else:
            path = DOCS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(FILES[name](), encoding="utf-8")
            print(f"docs/{name}")
    return 1 if args.check and stale else 0


def _is_current(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
