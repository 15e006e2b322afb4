# SPDX-License-Identifier: LGPL-2.1-or-later
"""Logs as consoles, dmesg, journalctl and syslogd write them, and what is no log."""

import gzip
import lzma

import pytest

from kcovdbg.model.log_record import LogRecord
from kcovdbg.records.log_text import decode_log, is_log, record_lines, split_log, untangle

STACK = " ksys_read+0x99/0x150"


@pytest.mark.parametrize(
    ("prefix", "caller"),
    [
        ("", None),
        ("[   12.345678] ", None),
        ("[   12.345678][   T77] ", "T77"),
        ("[   12.345678] [   T77] ", "T77"),
        ("<4>[   12.345678][    C1] ", "C1"),
        ("[   12.345678][ T77@C1] ", "T77"),
        ("kern  :warn  : [   12.345678] ", None),
        ("kern  :warn  : [Sat Nov 28 03:21:44 2026] ", None),
        ("[Sat Nov 28 03:21:44 2026] ", None),
        ("2026-11-28T03:21:44,123456+00:00 ", None),
        ("Nov 28 03:21:44 host kernel: ", None),
        ("Nov 28 03:21:44 host kernel: [   12.345678] ", None),
        ("2026-11-28T03:21:44.123456+00:00 host kernel: ", None),
        ("[   12.345678] host kernel: ", None),
        ("kernel: ", None),
        ("Tue Feb  1 19:02:25 2022 kern.warn kernel: [11134.342200] ", None),
        ("[22:22:59:896] [    0.632863] ", None),
        ("[2026-11-28 22:22:59.896] [    0.632863][    C1] ", "C1"),
        ("2022-03-21T20:33:11.1234567Z [    1.707778] ", None),
        ("2026-11-28T03:21:44+0000 host kernel: [    1.707778] ", None),
        ("[   12.345678 <    0.000012>] ", None),
        ("[<    0.000012>] ", None),
        ("[Sat Nov 28 03:21:44 2026 <    0.000012>] ", None),
        ("[Nov28 03:21] ", None),
        ("[  +0.000012] ", None),
        ("[   12.345678,1] ", None),
        ("<4>Nov 28 03:21:44 host kernel: [   12.345678] ", None),
        ("<4>1 2026-11-28T03:21:44.123Z host kernel - - - [   12.345678] ", None),
        ("Sat 2026-11-28 03:21:44 UTC host kernel: ", None),
        ("1764394107.123456 host kernel: ", None),
        ("[   12.345678 <    0.000012 >] host kernel: ", None),
        ("    MESSAGE=", None),
        ("4,416,12345678,-;", None),
        ("6.12.0-rc1+,4,416,12345678,-,caller=T77;", "T77"),
        ("<4>[   12.345678]  [3:   kworker/3:1: 1234] ", None),
        ("<4>[   12.345678]  (3)[1234:kworker/3:1]", None),
        ("11-28 03:21:44.123     0     0 W         : ", None),
        ("11-28 03:21:44.123  root     0     0 W KERNEL  : [   12.345678][    C1] ", "C1"),
        ("Nov 28 03:21:44 ", None),
        ("00:00:12 ", None),
        ("2026-11-28T03:21:44.123456  [   12.345678] ", None),
        ("    [   12.345678][    C1] ", "C1"),
        ("> > [   12.345678][    C1] ", "C1"),
        ("\r[   12.345678] ", None),
        ("\0\0[   12.345678] ", None),
    ],
)
def test_what_is_in_front_of_a_line(prefix, caller):
    (line,) = split_log(f"{prefix}{STACK}\r\n")
    assert (line.message, line.caller, line.is_stamped) == (STACK, caller, bool(prefix))
    assert line.text == f"{prefix}{STACK}\r"


@pytest.mark.parametrize("stamp", ["", "2026-11-28 03:21:44.123456 ", "[   12.345678] "])
@pytest.mark.parametrize("message", ["RIP: 0010:ksys_read", "BUG: KASAN: x", "[<0>] y", "<NMI>"])
def test_a_message_is_no_stamp(stamp, message):
    (line,) = split_log(stamp + message)
    assert line.message == message


def test_blanks_of_web_pages():
    (line,) = split_log(f"[\xa0\xa012.345678]{STACK.replace(' ', chr(0xA0))}\n")
    assert (line.message, line.time) == (STACK.lstrip(), 12.345678)


@pytest.mark.parametrize(
    "escape",
    [
        "\x1b[32m",
        "\x1b[0;1m",
        "\x1b[K",
        "\x1b(B",
        "^[[0m",
        "\\x1b[7m",
        "#033[0m",
        "\x1b]0;title\x07",
    ],
)
def test_sequences_of_a_terminal(escape):
    text = f"{escape}[   12.345678] {escape}RIP: {escape}0010:ksys{escape}_read+0x99/0x150{escape}"
    (line,) = split_log(text)
    assert line.message == "RIP: 0010:ksys_read+0x99/0x150"
    start = line.plain.index("ksys")
    first, end = line.original_span(start, start + len("ksys_read"))
    assert text[first:end] == f"ksys{escape}_read"


def test_a_line_is_kept_as_it_was_given():
    text = "a\tb\n\n\x0cc\u2028d\r\ne"
    assert [line.text for line in split_log(text)] == text.split("\n")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings(pack, encoding):
    text = f"{STACK}\n do_syscall_64+0x54/0xb0\n"
    assert decode_log("log", pack(text.encode(encoding))) == text


@pytest.mark.parametrize("mark", ["> ", "# ", "> > "])
def test_a_quoted_line(mark):
    (line,) = split_log(f"{mark}{STACK}\n")
    assert (line.message, line.is_stamped) == (STACK, False)


def test_lines_of_several_cpus():
    text = (
        "[    1.0][    T1] a\n[    1.0][    C0] x\n[    1.0][    T1] b\nlost\n[    1.0][    C0] y\n"
    )
    found = untangle(split_log(text))
    assert [(index, [line.message for line in lines]) for index, lines in found] == [
        (0, ["a", "b", "lost"]),
        (1, ["x", "y"]),
    ]


def test_records():
    lines = list(record_lines([LogRecord(1, 5, 4, 0, "T7", "one\n two")]))
    assert [(line.message, line.caller) for line in lines] == [("one", "T7"), (" two", "T7")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STACK, True),
        ("executing program 1:\nfoo()\n[   12.3456] BUG: x\n", True),
        ("[   12.345678] usb 1-1: new device\n" * 3, True),
        ("\x1b[32m[   12.345678] \x1b[0musb\n", True),
        ("BUG: memory leak\nunreferenced object 0xffff888111111100 (size 32):\n", True),
        (" #1 [ffffc90000013b80] ksys_read at ffffffff811dc419\n", True),
        ("WARNING: fs/read_write.c:713 at ksys_read+0x99/0x150, CPU#1: syz.0.17/6543\n", True),
        ("ffffffff811dc419\nffffffff811dc420\n", False),
        ("vmlinux+1a2b3c\nvmlinux+0x1a2b3d\n", False),
        ("TN:\nSF:fs/a.c\nDA:1,1\n", False),
        ("ffffffff81000000 T _stext\n", False),
        ("sym vfs_read\ncheck\n", False),
        ("", False),
    ],
)
def test_logs_are_recognized(text, expected):
    assert is_log(text.encode()) is expected
    assert is_log(text.encode("utf-16")) is expected


def test_binary_data_is_no_log():
    assert not is_log(b"\x7fELF\x02\x01\x01" + bytes(200) + STACK.encode())
    assert not is_log(bytes(range(256)) * 16 + STACK.encode())


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[" + "1;" * 50_000,
        "[" * 100_000,
        " " * 100_000,
        "a" * 100_000,
        "WARNING: " * 10_000,
        "#1 [" * 9_999,
    ],
)
def test_hostile_lines_take_no_time(line):
    split_log(f"{line}\n" * 5)
    is_log(line.encode())
