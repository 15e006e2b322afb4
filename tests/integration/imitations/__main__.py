# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes the imitations for other machines anew: ``python -m tests.integration.imitations
[ROW…]``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.integration.imitations.build import CROSS, KEPT, ROWS, make_imitation
from tests.lab import requirements


def main(rows: list[str]) -> int:
    """Compile, run and keep; all rows unless some are named."""
    unknown = sorted(set(rows) - set(ROWS))
    if unknown:
        print(f"there is no row {unknown[0]}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 2
    KEPT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for machine in CROSS:
            requirements.ensure({**machine.packages, "zstd": "zstd"})
            for row in rows or ROWS:
                made = make_imitation(row, machine, Path(directory))
                truth = made.program.with_suffix(".truth")
                truth.write_text("".join(json.dumps(line) + "\n" for line in made.truth))
                for path in (made.program, made.core, truth):
                    subprocess.run(
                        ["zstd", "-19", "-q", "-f", path, "-o", KEPT / f"{path.name}.zst"],
                        check=True,
                    )
    print(f"{sum(path.stat().st_size for path in KEPT.iterdir())} bytes in {KEPT}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
