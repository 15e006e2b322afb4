# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the generated files, or report those that are out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate.command_pages import write_commands
from docs.generate.completions import complete_in
from docs.generate.gdb_commands import write_gdb_commands
from docs.generate.generation_pages import write_generations
from docs.generate.glossary_page import write_glossary
from docs.generate.json_page import write_json_page, write_json_schema
from docs.generate.manpage import write_manpage
from docs.generate.rule_pages import write_rules

DOCS = Path(__file__).parent.parent

FILES: Mapping[str, Callable[[], str]] = {
    "man/kcovdbg.1": write_manpage,
    "completions/kcovdbg.bash": lambda: complete_in("bash"),
    "completions/_kcovdbg": lambda: complete_in("zsh"),
    "completions/kcovdbg.fish": lambda: complete_in("fish"),
    "commands.md": write_commands,
    "glossary.md": write_glossary,
    "json.md": write_json_page,
    "json-schema.json": write_json_schema,
    "check-rules.md": write_rules,
    "generations.md": write_generations,
    "../gdb/kcov_show/commands.json": write_gdb_commands,
}
"""Function that returns the content of each generated file, by its path under docs/."""


def main() -> int:
    """Write the files; with --check, return 1 if one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, report files that are out of date"
    )
    args = parser.parse_args()
    stale = [name for name, write in FILES.items() if not _is_current(DOCS / name, write())]
    for name in stale:
        if args.check:
            print(f"docs/{name}: out of date; run python -m docs.generate", file=sys.stderr)
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
