# SPDX-License-Identifier: LGPL-2.1-or-later
"""Numbers and JSON of inputs are parsed in one place each, where both have bounds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import kcovdbg
from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import find_number, parse_number
from kcovdbg.monitor.samples import read_samples
from kcovdbg.records.pc_file import read_pc_file
from kcovdbg.records.pc_options import PcFormat
from kcovdbg.records.side_file import read_header

_TOP: Final = Path(kcovdbg.__file__).parent
_ONE_PLACE: Final = "input_file.py"
# What is no input: what kcovdbg has written itself, and the other end of its own pipes.
_OWN_JSON: Final = frozenset(
    (
        "collect/background_jobs.py",
        "farm/batch_worker.py",
        "farm/workdir_reader.py",
        "farm/workdir_worker.py",
        "frontends/gdb/link.py",
        "frontends/mcp/calls.py",
    )
)
# The user's own words, the kernel that this runs on, and numbers with so many digits as their
# patterns allow.
_OWN_NUMBERS: Final = frozenset(
    (
        "abi/handle.py",
        "buffers/view_state.py",
        "collect/command.py",
        "collect/trace_writer.py",
        "console/argument.py",
        "elf/rust_names.py",
        "patch/change.py",
        "records/oops_words.py",
        "records/pc_file.py",
        "records/user_view.py",
        "target/drgn/machines.py",
        "target/local_kernel.py",
        "target/qmp.py",
        "target/rsp.py",
        "target/missing_vmcoreinfo.py",
        "walk/buffer_names.py",
        "why/code_name.py",
    )
)


def _calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(_TOP.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                yield str(path.relative_to(_TOP)), node


def test_json_is_parsed_in_one_place() -> None:
    found = {
        place
        for place, call in _calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in ("loads", "load", "raw_decode", "JSONDecoder")
        if isinstance(call.func.value, ast.Name | ast.Call)
        and "json" in ast.unparse(call.func).lower()
    }
    assert found == {_ONE_PLACE, *_OWN_JSON}


def test_numbers_with_a_base_are_parsed_in_one_place() -> None:
    found = {
        place
        for place, call in _calls()
        if isinstance(call.func, ast.Name)
        and call.func.id == "int"
        and len(call.args) + len(call.keywords) > 1
    }
    assert found <= {_ONE_PLACE, *_OWN_NUMBERS}


@pytest.mark.parametrize("text", ["", "x", "9" * 5000, b"9" * 5000, "0x" + "f" * 5000, "1e5"])
def test_what_is_no_number_of_a_kernel(text: str | bytes) -> None:
    assert parse_number(text, 0 if isinstance(text, str) else 10) is None


def test_numbers_of_json() -> None:
    values = (5, "5", "0x10", float("inf"), True, None, [], "9" * 5000)
    assert [find_number(value) for value in values] == [5, 5, 16, None, None, None, None, None]


_LONG: Final = "9" * 5000
_LISTS: Final = {
    "digits": f"{_LONG}\n0xffffffff81000000\n",
    "count": f"{_LONG}\n" + "0xffffffff81000000\n" * 3,
    "json": f'{{"pc":{_LONG}}}',
    "json hits": f'{{"pc":18446744071579107328,"hit_count":{_LONG}}}',
    "json list": f'{{"pcs":[{_LONG},18446744071579107328]}}',
    "hexadecimal": "0x" + "f" * 5000 + "\n0xffffffff81000000\n",
    "drcov": f"DRCOV VERSION: 2\nColumns: id, base, end, entry, path\n0, 0x1, 0x2, 0x0, /a\nBB "
    f"Table: "
    f"{_LONG} bbs\n",
    "drcov module": f"DRCOV VERSION: 2\nColumns: id, base, end, path\n{_LONG}, 0x1, 0x2, /a\n"
    + f"0, {_LONG}, 0x2, /b\nBB Table: 1 bbs\n",
    "drcov zeros": "DRCOV VERSION: 2\nColumns: id, base, end, path\n0, 012, 0x2, /a\nBB Table: 0 "
    "bbs\n",
    "drcov text": "DRCOV VERSION: 2\nColumns: id, base, path\n0, 0x1, /a\nBB Table: 1 bbs\nmodule "
    "id, start, "
    "size:\n" + f"module[{_LONG}]: 0x{_LONG}, 1\n",
    "offsets": f"vmlinux+0x{_LONG}\nvmlinux+0x10\n",
    "table": f"PC,x\n{_LONG},1\n0xffffffff81000000,1\n",
}


@pytest.mark.parametrize("wanted", [None, *PcFormat])
@pytest.mark.parametrize("name", _LISTS)
def test_long_numbers_in_lists(name: str, wanted: PcFormat | None) -> None:
    # Any other exception is an internal error.
    with suppress(KcovdbgError):
        assert all(
            word < 1 << 64 for word in read_pc_file("a", _LISTS[name].encode(), wanted).words
        )


@pytest.mark.parametrize(
    "value", [_LONG, f'"{_LONG}"', "1e999", "-1e999", "[" * 50_000, "{}", '"0x' + "f" * 5000 + '"']
)
@pytest.mark.parametrize(
    "key", ["format", "count", "size", "pid", "kaslr_offset", "modules", "argv"]
)
def test_side_files(tmp_path: Path, key: str, value: str) -> None:
    trace = tmp_path / "a.kcov"
    trace.write_bytes(bytes(16))
    module = (
        f'[{{"name": "a", "build_id": null, "size": {value}, "sections": {{".text": {value}}}}}]'
    )
    text = module if key == "modules" else value
    (tmp_path / "a.kcov.json").write_text(f'{{"format": 1, "mode": "TRACE_PC", "{key}": {text}}}')
    with suppress(KcovdbgError):
        found = read_header(trace)
        assert found is not None
        assert not found.modules


@pytest.mark.parametrize(
    "value", [_LONG, "1e999", "[" * 50_000, "{", '"' + _LONG + '"', "[]," * (1 << 21)]
)
def test_recordings(tmp_path: Path, value: str) -> None:
    path = tmp_path / "recording"
    path.write_text(f'{{"time": {value}}}\n')
    with pytest.raises(KcovdbgError) as caught:
        list(read_samples(str(path)))
    assert "\n" not in str(caught.value)
