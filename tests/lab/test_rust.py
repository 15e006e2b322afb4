# SPDX-License-Identifier: LGPL-2.1-or-later
"""Coverage of a driver in Rust, collected in a guest: names, points and locations as
llvm-symbolizer has them.

Skipped unless the kernel is built: python -m tests.lab build --recipe 7.3-rust.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcovdbg.abi import record
from kcovdbg.elf.symbol_table import demangle
from tests.lab.collect_guest import SHARED, Lab, boot_packed
from tests.lab.conftest import built
from tests.support.programs import ask_llvm, output_of

DEVICE = "<rust_misc_device::RustMiscDevice as kernel::miscdevice::MiscDevice>::ioctl"
TRACE = f"{SHARED}/rust.kcov"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with boot_packed(*built("7.3-rust"), tmp_path_factory.mktemp("exchange")) as lab:
        lab.collect(f"-o {TRACE} -- {SHARED}/rust_device")
        lab.fetch("rust.kcov", "rust.kcov.json")
        yield lab


def test_records_are_located_as_by_llvm(lab: Lab) -> None:
    rows = lab.outside("buffer", f"file:{lab.exchange}/rust.kcov")
    mine = {
        int(row["pc"], 16): [
            (frame["function"], frame["line"] or 0, Path(frame["file"]).name)
            for frame in row["frames"]
        ]
        for row in rows
        if any((frame["file"] or "").endswith(".rs") for frame in row["frames"])
    }
    theirs = [
        [(frame["FunctionName"], frame["Line"], Path(frame["FileName"]).name) for frame in frames]
        for frames in ask_llvm(lab.guest.kernel.vmlinux, (pc - 1 for pc in mine))
    ]
    print(f"{len(rows)} records, {len(mine)} distinct PCs in Rust, {sum(map(len, theirs))} frames")
    assert len(mine) > 20
    assert list(mine.values()) == theirs


def test_functions_are_those_of_the_symbol_table(lab: Lab) -> None:
    buffer = lab.trace("rust.kcov")
    executed = {demangle(lab.function(pc)) for pc in record.pc_words(buffer.words, buffer.encoding)}
    assert DEVICE in executed
    rows = lab.outside("buffer", f"file:{lab.exchange}/rust.kcov", "--function", DEVICE)
    assert rows
    symbol = next(name for _, name in lab.symbols if demangle(name) == DEVICE)
    assert symbol in {row["symbol"] for row in rows}
    assert lab.outside("buffer", f"file:{lab.exchange}/rust.kcov", "--function", symbol) == rows


def test_points_are_covered_where_the_driver_ran(lab: Lab) -> None:
    rows = lab.outside("points", DEVICE, f"file:{lab.exchange}/rust.kcov")
    of_pc = [row for row in rows if row["kind"] == "pc"]
    assert {bool(row["hits"]) for row in of_pc} == {True, False}
    assert {row["frames"][-1]["function"] for row in rows} == {DEVICE}
    for row in of_pc:
        # The instruction before is a call of the callback.
        start = int(row["pc"], 16)
        span = (f"--start-address={start - 5:#x}", f"--stop-address={start:#x}")
        assert "<__sanitizer_cov_trace_pc>" in output_of(
            "objdump", "-d", *span, lab.guest.kernel.vmlinux
        )


def test_source_is_found(lab: Lab) -> None:
    words = ("source", f"file:{lab.exchange}/rust.kcov", "samples/rust/rust_misc_device.rs")
    rows = lab.outside("--source-dir", str(lab.guest.kernel.tree), *words)
    assert any(row["hits"] and "RUST_MISC_DEV_GET_VALUE" in (row["text"] or "") for row in rows)
