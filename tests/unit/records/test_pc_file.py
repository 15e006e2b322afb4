# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lists of PCs in every format that tools write, and files that are none."""

import bz2
import gzip
import json
import lzma
import random
import struct

import pytest

from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import unpack_data
from kcovdbg.model.location import Location
from kcovdbg.records.pc_file import NotATraceError, read_pc_file
from kcovdbg.records.pc_list import TraceKernel
from kcovdbg.records.pc_options import PcFormat
from kcovdbg.records.trace_reader import read_trace
from kcovdbg.records.written_locations import WrittenLocation

PCS = [0xFFFFFFFF81000005 + 16 * index for index in range(12)]
HEX = "".join(f"{pc:#x}\n" for pc in PCS)
BASE = 0xFFFFFFFF81000000


def read(data, wanted=None):
    return read_pc_file("x", data if isinstance(data, bytes) else data.encode(), wanted)


TEXTS = {
    "plain": HEX,
    "without a prefix": "".join(f"{pc:x}\n" for pc in PCS),
    "in capitals": "".join(f"0X{pc:X}\n" for pc in PCS),
    "with line ends of DOS": HEX.replace("\n", "\r\n"),
    "on old Macs": HEX.replace("\n", "\r"),
    "blank lines": HEX.replace("\n", "\n\n  \n"),
    "commas": ",".join(map(hex, PCS)),
    "commas and blanks": ", ".join(map(hex, PCS)) + ",\n",
    "comments": "# from task 41\n" + HEX.replace("\n", "  # seen\n"),
    "decimal": "".join(f"{pc}\n" for pc in PCS),
    "negative": "".join(f"{pc - (1 << 64)}\n" for pc in PCS),
    "a list of Python": repr(PCS),
    "a set of Python": "{" + ", ".join(map(hex, PCS)) + "}",
    "a map to counts": json.dumps({hex(pc): pc & 7 for pc in PCS}),
    "constants of C": "".join(f"\t{pc:#x}UL,\n" for pc in PCS),
    "negative, hexadecimal": "".join(f"-{(1 << 64) - pc:#x}\n" for pc in PCS),
    "memory in GDB": "".join(
        f"{0xFFFFC90000000000 + 8 * at:#x} <area+{8 * at}>:\t{PCS[at]:#x}\t{PCS[at + 1]:#x}\n"
        for at in range(0, 12, 2)
    ),
    "memory in crash": "".join(
        f"{0xFFFFC90000000000 + 8 * at:x}:  {PCS[at]:x} {PCS[at + 1]:x}   ...T....\n"
        for at in range(0, 12, 2)
    ),
    "a list of JSON": json.dumps(list(map(hex, PCS))),
    "dmesg": "".join(f"[   12.{index:06}] {pc:#x}\n" for index, pc in enumerate(PCS)),
    "a console": "".join(
        f"<6>[   12.3][ T{index}] kcov: {pc:016x}\n" for index, pc in enumerate(PCS)
    ),
    "syslog": "".join(f"Jul  1 10:00:00 host kernel: [ 12.3] {pc:#x}\n" for pc in PCS),
    "colors": "".join(f"\x1b[32m {pc:#x} \x1b[0m\n" for pc in PCS),
    "addr2line's answer": "".join(
        f"{pc:#x}: vfs_read at /src/fs/read_write.c:{pc & 0xFFF}\n" for pc in PCS
    ),
    "addr2line's input": "".join(f"vmlinux {pc:#x}\n" for pc in PCS),
    "rawcoverfiles": "PC,Module,Offset,Filename,Inline,StartLine,EndLine\n"
    + "".join(
        f"{pc:#x},,{pc:#x},fs/a.c,{inline},1,1\n" for pc in PCS for inline in ("false", "true")
    ),
    "jsonl": "".join(
        f'{{"file_path":"a.c","func_name":"\\"pc\\":7","sl":1,"sc":0,"el":1,"ec":-1,"hit_count":1,"inline":{inline},"pc":{pc}}}\n'
        for pc in PCS
        for inline in ("true", "false")
    ),
    "JSON of kcovdbg": json.dumps(
        [{"index": 0, "pc": hex(pc), "address": hex(pc + 0x1000000), "kind": "pc"} for pc in PCS]
    ),
    "CSV of kcovdbg": "index,pc,address,kind\n"
    + "".join(f"{pc & 7},{pc:#x},{pc + 16:#x},pc\n" for pc in PCS),
    "a corpus": json.dumps({"calls": [{"call": "read", "cover": PCS[:6]}, {"Cover": PCS[6:]}]}),
    "JSON of points": json.dumps(
        [
            {"pc": hex(pc + off), "kind": "pc", "hits": hits}
            for pc in PCS
            for off, hits in ((0, 3), (4, 0), (8, None))
        ]
    ),
    "CSV of points": "pc,symbol,hits\n"
    + "".join(f'{pc:#x},"a<b, c>",1\n{pc + 4:#x},f,0\n{pc + 8:#x},f,\n' for pc in PCS),
    "hits in front": "".join(
        json.dumps({"hits": hits, "pc": pc + off}) + "\n"
        for pc in PCS
        for off, hits in ((4, 0), (0, 3))
    ),
    "covered or not": "".join(
        json.dumps({"pc": pc + off, "covered": not off}) + "\n" for pc in PCS for off in (0, 4)
    ),
    "in angle brackets": "".join(f"<{pc:016x}>\n" for pc in PCS),
    "an oops": "".join(f" [<{pc:016x}>] vfs_read+0x15/0x40\n" for pc in PCS),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text(name):
    found = read(TEXTS[name])
    assert (list(found.words), found.skipped) == (PCS, 0)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    ("encoding", "start"),
    [
        ("utf-8-sig", ""),
        ("utf-16", ""),
        ("utf-16-be", ""),
        ("utf-16-be", "\ufeff"),
        ("utf-16-le", ""),
    ],
)
def test_encodings(name, encoding, start):
    assert list(read((start + TEXTS[name]).encode(encoding)).words) == PCS


def compress_zstd(data):
    zstandard = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor().compress(data)


def compress_lzma(data):
    return lzma.compress(data, lzma.FORMAT_ALONE)


PACKINGS = {
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "lzma": compress_lzma,
    "zstd": compress_zstd,
}


@pytest.mark.parametrize("program", PACKINGS)
def test_compressed(tmp_path, program):
    pack = PACKINGS[program]
    assert (
        list(read(pack(HEX.encode())).words) == list(read(pack(HEX.encode("utf-16"))).words) == PCS
    )
    # As of concatenated files.
    assert list(read(pack(HEX.encode()) * 2).words) == PCS * 2
    whole = struct.pack("<13Q", 12, *PCS)
    path = tmp_path / "a.kcov.x"
    path.write_bytes(pack(whole))
    assert list(read_trace(path).words) == PCS
    with pytest.raises(KcovdbgError, match=program):
        read(pack(HEX.encode())[:-9])


@pytest.mark.parametrize("preset", range(10))
def test_each_dictionary_of_lzma(preset):
    packed = lzma.compress(HEX.encode(), lzma.FORMAT_ALONE, preset=preset)
    assert list(read(packed).words) == PCS


def test_a_buffer_is_not_taken_for_lzma(tmp_path):
    """Its count is the first byte of lzma's parameters."""
    path = tmp_path / "a.kcov"
    path.write_bytes(struct.pack("<94Q", 93, *range(PCS[0], PCS[0] + 93)))
    assert read_trace(path).count == 93


@pytest.mark.parametrize(
    ("data", "program"),
    [
        (bz2.compress(b"x"), "bzip2"),
        (b"\x1f\x9d\x90\x30\x60\x10", "gzip"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7", "lz4"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "7z"),
    ],
)
def test_what_decompresses_other_formats_is_named(data, program):
    with pytest.raises(NotATraceError) as caught:
        read(data)
    assert program in caught.value.hint
    with pytest.raises(KcovdbgError) as caught:
        unpack_data("a log", data)
    assert program in caught.value.hint


EMPTY = [
    b"",
    b"\n\n",
    b"\xef\xbb\xbf",
    b"0\n",
    b"[]",
    b" [\n]\n",
    b"{}",
    b"set()\n",
    b'{"pcs": []}',
    b'{"calls": [{"call": "read", "cover": [ ]}]}',
    b"PC,Module,Offset,Filename,Inline,StartLine,EndLine\n",
    b"index,pc,address,kind\n",
    b"from,to,count\n",
    b"DRCOV VERSION: 2\nDRCOV FLAVOR: kcov\nModule Table: version 2, count 0\nColumns: id, "
    b"base, end, entry, path\n"
    b"BB Table: 0 bbs\nmodule id, start, size:\n",
    struct.pack("<Q", 0),
    struct.pack("<Q", 0xC0BFFFFFFFFFFF64),
]


@pytest.mark.parametrize("blank", EMPTY)
def test_a_file_without_lines_is_a_trace_without_records(tmp_path, blank):
    path = tmp_path / "cov_prog1.2"
    path.write_bytes(blank)
    assert read_trace(path).count == 0


def test_json_says_what_its_pcs_are():
    assert list(read('{"pcs":[123]}').words) == [123]
    assert list(read('{"pcs":["0x7b", 1.5, "none"]}').words) == [123]
    with pytest.raises(NotATraceError):
        read('{"coverage":[45.5]}')


EDGES = {
    "kAFL": "".join(f"{PCS[at]:x},{PCS[at + 1]:x},{at + 1}\n" for at in range(11)),
    "with a heading": "from,to,count\n"
    + "".join(f"{PCS[at + 1]:#x}, {PCS[at]:#x}, 9\n" for at in range(11)),
    "blanks": "".join(f"{PCS[at]:#x} {PCS[at + 1]:#x} 12345678\n" for at in range(11)) * 2,
}


@pytest.mark.parametrize("name", EDGES)
def test_ends_of_edges_are_records_once(name):
    for text in (EDGES[name], EDGES[name].replace("\n", "\r\n")):
        found = read(text)
        assert (list(found.words), found.skipped, bool(found.disorder)) == (PCS, 0, True)


STACKS = {
    "GDB": "#0  0xffffffff811dc419 in ksys_read (fd=3) at fs/read_write.c:712\n#1  "
    "0xffffffff814de834 "
    "in do_syscall_64 ()\n",
    "GDB, wrapped": "#0  0xffffffff811dc419 in ksys_read (\n    fd=3)\n    at fs/a.c:712\n#1  "
    "0xffffffff814de834 in ()",
    "GDB, no address": "#0  ksys_read (fd=3) at fs/read_write.c:712\n#1  0xffffffff814de834 in "
    "do_syscall_64 "
    "()\n",
    "crash": " #1 [ffffc90000013b80] ksys_read at ffffffff811dc419\n #2 [ffffc90000013ba0] "
    "do_syscall_64 at ffffffff814de834\n",
    "crash, with its heading": 'PID: 41  TASK: ffff888004a1e000  CPU: 0  COMMAND: "kc"\n'
    " #0 [ffffc90000013b80] ksys_read at ffffffff811dc419\n #1 [ffffc90000013ba0] "
    "do_syscall_64 at ffffffff814de834\n",
    "drgn": "#0  ksys_read+0x19/0x40\n#1  do_syscall_64 (arch/x86/entry/common.c:97:7)\n",
}


@pytest.mark.parametrize("name", STACKS)
def test_stacks(name):
    with pytest.raises(NotATraceError) as caught:
        read(STACKS[name])
    assert "stack" in caught.value.found


@pytest.mark.parametrize("name", ["GDB", "crash"])
def test_addresses_of_stacks(name):
    """Those of the stack's memory are none of code."""
    assert list(read(STACKS[name], PcFormat.TEXT).words) == [0xFFFFFFFF811DC419, 0xFFFFFFFF814DE834]


@pytest.mark.parametrize("text", ["# nothing\n", "\n\n// none\n; 0 PCs\n", "#\n"])
def test_comments_alone_are_no_trace(text):
    with pytest.raises(NotATraceError):
        read(text)
    assert list(read(text + HEX).words) == PCS


def test_lines_without_an_address_are_counted():
    found = read("2026/07/01 10:00:00 parsed 1 programs\n" + HEX + "done\n")
    assert list(found.words) == PCS
    assert (found.skipped, found.first_skipped) == (2, (1, "2026/07/01 10:00:00 parsed 1 programs"))


@pytest.mark.parametrize("count", ["12\n", "12\r\n", "0012\n"])
def test_a_count_line(count):
    for text, skipped in (
        (count + HEX, 0),
        (count + "".join(f"{pc}\n" for pc in PCS), 0),
        ("99\n" + HEX, 1),
    ):
        found = read(text)
        assert (list(found.words), found.skipped) == (PCS, skipped)


def test_what_is_no_address_is_no_record():
    found = read("0x47\n0xffffffffffffffea\n" + HEX)
    assert (list(found.words), found.skipped) == (PCS, 2)


@pytest.mark.parametrize(("code", "size"), [("Q", 8), ("I", 4)])
@pytest.mark.parametrize("order", ["<", ">"])
def test_binaries(code, size, order):
    pcs = [pc & ((1 << 8 * size) - 1) for pc in PCS]
    data = struct.pack(f"{order}15{code}", 12, *pcs, 0, 0)
    magic = 0xC0BFFFFFFFFFFF64 if size == 8 else 0xC0BFFFFFFFFFFF32
    for text, buffer, words in (
        (data, data, []),
        (struct.pack(f"{order}12{code}", *pcs), None, pcs),
        (struct.pack(f"{order}Q12{code}", magic, *pcs), None, pcs),
    ):
        found = read(text)
        assert (found.buffer, list(found.words), found.word_size, found.big_endian) == (
            buffer,
            words,
            size,
            order == ">",
        )


@pytest.mark.parametrize(
    "base", [0xFFFF800080000000, 0xC000000000100000, 0x9000000000200000, 0xFFFFFFFF80002000]
)
def test_binaries_of_other_machines(base):
    pcs = [base + 4 * index for index in range(50)]
    for order in "<>":
        assert read(struct.pack(f"{order}51Q", 50, *pcs)).big_endian is (order == ">")
        assert list(read(struct.pack(f"{order}50Q", *pcs)).words) == pcs


def test_a_cut_binary_is_a_binary():
    for data in (
        struct.pack("<13Q", 4000, *PCS),
        struct.pack("<13Q", 12, *PCS) + b"\1\2",
        bytes(4096),
    ):
        assert read(data).buffer == data


def test_all_points_of_syzkaller_are_not_a_run():
    assert read(TEXTS["rawcoverfiles"]).lists_all_points
    missed = TEXTS["jsonl"].replace('"hit_count":1', '"hit_count":0')
    assert list(read(missed + TEXTS["jsonl"]).words) == PCS


def test_offsets():
    found = read(
        "; Lighthouse\n" + "".join(f"vmlinux+{pc - BASE:x}\n" for pc in PCS) + "dir/ext4.ko+40\n"
    )
    assert list(found.words) == [pc - BASE for pc in PCS] + [0x40]
    assert [module.name for module in found.modules] == ["vmlinux", "ext4.ko"]
    assert list(found.module_of) == [0] * 12 + [1]


FUNCTIONS = {
    "by printk": "vfs_read+0x15/0x40\nksys_read+0x10/0x30\nvfs_read+0x15/0x40\n",
    "by /proc": "[<0>] vfs_read+0x15/0x40\n[<0>] ksys_read+0x10/0x30\n[<0>] vfs_read+0x15/0x40\n",
    "by ftrace": " => vfs_read+0x15/0x40\n => ksys_read+0x10/0x30\n => vfs_read+0x15/0x40\n",
    "with a comment": "# from task 41\n\n  vfs_read+0x15/0x40\n  ksys_read+0x10/0x30  # seen\n  "
    "vfs_read+0x15/0x40\r\n",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_with_offsets(name):
    found = read(FUNCTIONS[name])
    assert [(place.function, place.offset, place.size) for place in found.places] == [
        ("vfs_read", 0x15, 0x40),
        ("ksys_read", 0x10, 0x30),
    ]
    assert (list(found.words), found.skipped) == ([0, 1, 0], 0)


def test_functions_of_modules_and_without_a_size():
    found = read(
        "f+0x15/0x40 [ext4]\ng+0x10 [ext4 0123abcd]\nread.part.0+0x8\n? h+0x1/0x2\nwords\n"
    )
    assert [(place.function, place.module) for place in found.places] == [
        ("f", "ext4"),
        ("g", "ext4"),
        ("read.part.0", None),
    ]
    assert found.skipped == 2
    for text in ("vmlinux+0x1a2b3c\next4.ko+0x40\n", "vmlinux+1a2b3c\n"):
        assert read(text).modules
        assert not read(text).places


def test_functions_with_decimal_offsets(tmp_path):
    """As bpftrace prints a stack; of functions that the kernel does not have, they are a module's,
    and so are hexadecimal ones.
    """
    functions = {"vfs_read": BASE, "ksys_read": BASE + 0x1000}

    def find_places(place):
        start = functions.get(place.function)
        pc = None if start is None else start + place.offset
        return [WrittenLocation(place, pc, pc, Location(pc or 0, ()))]

    kernel = TraceKernel(find_places=find_places)
    path = tmp_path / "stack"
    path.write_text("@[\n    vfs_read+21\n    ksys_read+153\n    vfs_read+32\n]: 3\n")
    words = read_trace(path, kernel).words
    assert list(words) == [BASE + 21, BASE + 0x1000 + 153, BASE + 32]
    for text in ("vfs_read+1f\n", "ext4+21\n"):
        path.write_text(text)
        with pytest.raises(KcovdbgError):
            read_trace(path, kernel)


DRCOV = "DRCOV VERSION: 2\nDRCOV FLAVOR: kcov\n"
TABLES = {
    2: "Module Table: version 2, count 1\nColumns: id, base, end, entry, path\n  0, 0x{0:x}, "
    "0x{1:x}, 0x0, vmlinux\n",
    3: "Module Table: version 3, count 1\nColumns: id, containing_id, start, end, entry, path\n"
    "  0,   0, 0x{0:x}, 0x{1:x}, 0x0, /boot/vmlinux\n",
    5: "Module Table: version 5, count 1\nColumns: id, containing_id, start, end, entry, offset, "
    "preferred_base, path\n"
    "  0,   0, 0x{0:x}, 0x{1:x}, 0x0, 0x0, 0x0, C:\\vmlinux\n",
}


@pytest.mark.parametrize("version", TABLES)
@pytest.mark.parametrize("is_binary", [False, True])
def test_drcov(tmp_path, version, is_binary):
    head = DRCOV + TABLES[version].format(BASE, BASE + 0x2000000) + f"BB Table: {len(PCS)} bbs\n"
    if is_binary:
        data = head.encode() + b"".join(struct.pack("<IHH", pc - BASE, 5, 0) for pc in PCS)
    else:
        lines = "".join(f"module[  0]: 0x{pc - BASE:016x},   5\n" for pc in PCS)
        data = f"{head}module id, start, size:\n{lines}".encode()
    assert [module.name for module in read(data).modules] == ["vmlinux"]
    path = tmp_path / "a.drcov"
    path.write_bytes(data)
    assert list(read_trace(path).words) == PCS
    moved = read_trace(
        path, TraceKernel(find_base=lambda name: BASE + 0x100 if name == "vmlinux" else None)
    )
    assert list(moved.words) == [pc + 0x100 for pc in PCS]


def test_offsets_without_a_kernel(tmp_path):
    path = tmp_path / "m"
    path.write_text("ext4.ko+40\n")
    with pytest.raises(KcovdbgError, match=r"'ext4\.ko'"):
        read_trace(path)


def test_data_compressed_twice(tmp_path):
    data = gzip.compress(gzip.compress(b"0xffffffff81000005\n"))
    (tmp_path / "list.gz").write_bytes(data)
    with pytest.raises(NotATraceError) as caught:
        read_trace(tmp_path / "list.gz")
    assert "gzip" in caught.value.hint


def test_texts_of_other_kinds_may_have_addresses():
    """Only what has none is said to have none."""
    for row, is_said in (("<pc>0xffffffff81000005</pc>", False), ("<pc>none</pc>", True)):
        with pytest.raises(NotATraceError) as caught:
            read(f'<?xml version="1.0"?>\n<pcs>\n{row}\n</pcs>\n')
        assert ("no PCs" in caught.value.hint) == is_said


OTHERS = {
    "lcov": (b"TN:41\nSF:a.c\nDA:1,2\nend_of_record\n", "lcov"),
    "lcov without a name": (b"SF:a.c\nDA:1,2\nend_of_record\n", "lcov"),
    "Cobertura": (
        b'<?xml version="1.0" ?>\n<!DOCTYPE coverage SYSTEM "x">\n<coverage/>',
        "Cobertura",
    ),
    "HTML": (b"  <!DOCTYPE html>\n<html>", "HTML"),
    "an answer of a server": (b"<html><body>404 page not found</body></html>\n", "HTML"),
    "ELF": (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\0" + bytes(4000), "ELF"),
    "a core": (b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\0" + bytes(4000), "dump"),
    "a dump": (b"KDUMP   " + bytes(4000), "dump"),
    "a flattened dump": (b"makedumpfile\0\0\0\0" + bytes(4000), "dump"),
    "funccover": (b"Module,Filename,Function,Covered PCs,Total PCs\n,a.c,f,1,2\n", "funccover"),
    "JSON": (b'{"a": 1}', "JSON"),
    "sentences": (b"no coverage here yet\n", "text"),
    "mostly sentences": (b"a\nb\nc\n" + HEX[:38].encode(), "text"),
    "small numbers": (b"1\n2\n3\n", "text"),
    "user addresses": (b"0x7f0000001000\n0x7f0000002000\n", "text"),
    "Python": (b"import os\nprint(os.getppid())\n", "text"),
    "corpus": (struct.pack("<II", 0xBADDB, 4) + b"\1\2" * 50, "corpus"),
    "kallsyms": (
        b"ffffffff81000000 T _stext\nffffffff81000010 t run_init_process\t[ext4]\n" * 4,
        "symbols",
    ),
    "kallsyms, hidden": (
        b"0000000000000000 T _stext\n0000000000000000 t run_init_process\n",
        "symbols",
    ),
    "nm of 32 bits": (b"c1000000 T _stext\nc1000010 t run_init_process\n", "symbols"),
    "objdump": (
        b"\nvmlinux:     file format elf64-x86-64\n\n\nDisassembly of section "
        b".text:\n\nffffffff81000000 <_stext>:\n"
        b"ffffffff81000000:\te8 10 00 00 00       \tcall   ffffffff81000010 "
        b"<__sanitizer_cov_trace_pc>\n",
        "disassembly",
    ),
    "calls in objdump's output": (
        b"ffffffff81000000:\te8 10 00 00 00       \tcall   ffffffff81000010 "
        b"<__sanitizer_cov_trace_pc>\n" * 9,
        "disassembly",
    ),
    "disassembly of arm64": (b"ffff800080010000:\td503245f \tbti\tc\n" * 9, "disassembly"),
    "pcap": (
        struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + bytes(range(200)),
        "packets",
    ),
    "pcapng": (struct.pack("<III", 0x0A0D0D0A, 28, 0x1A2B3C4D) + bytes(range(200)), "packets"),
    "modules": (
        b"ext4 999424 1 - Live 0xffffffffc0000000 (OE)\nmbcache 16384 1 ext4, Live "
        b"0xffffffffc0100000\n",
        "modules",
    ),
    "vmallocinfo": (
        b"0xffffc90000000000-0xffffc90000002000    8192 hpet_enable+0x36/0x4a0 ioremap\n" * 4,
        "ranges",
    ),
    "iomem": (b"ffffffff81000000-ffffffff82000000 : Kernel code\n", "ranges"),
    "NumPy": (
        b"\x93NUMPY\1\0v\0" + b"{'descr': '<u8'}".ljust(118) + struct.pack("<12Q", *PCS),
        "NumPy",
    ),
    "erased memory": (b"\xff" * 4096, "binary"),
    "names alone": (b"vfs_read\nksys_read\n", "text"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_kinds(name):
    data, word = OTHERS[name]
    with pytest.raises(NotATraceError) as caught:
        read(data)
    assert word.lower() in caught.value.found.lower()
    assert "\n" not in str(caught.value)
    with pytest.raises(NotATraceError) as caught:
        read(gzip.compress(data))
    assert word.lower() in caught.value.found.lower()


def test_random_bytes_are_refused():
    source = random.Random(7)
    accepted = 0
    for size in (9, 16, 40, 100, 1000, 4096, 100_000):
        for _ in range(20):
            try:
                read(source.randbytes(size))
            except NotATraceError:
                continue
            accepted += 1
    assert accepted == 0


def test_a_format_that_the_user_names():
    data = struct.pack("<4Q", 3, 7, 8, 9)
    with pytest.raises(NotATraceError):
        read(data)
    assert read(data, PcFormat.BINARY).buffer == data
    assert list(read(data, PcFormat.WORDS).words) == [3, 7, 8, 9]
    assert list(read("2164260869\n2164260885\n", PcFormat.DECIMAL).words) == [
        0x81000005,
        0x81000015,
    ]
    assert list(read(HEX, PcFormat.TEXT).words) == PCS
    for wanted in (PcFormat.SANCOV, PcFormat.DRCOV, PcFormat.CSV, PcFormat.JSON, PcFormat.MODOFF):
        with pytest.raises(NotATraceError):
            read(HEX, wanted)
