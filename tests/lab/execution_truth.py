# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest's kernel executed in each system call, by QEMU's log, and what KCOV recorded
meanwhile.
"""

from __future__ import annotations

import itertools
import re
import struct
import subprocess
from array import array
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from kcovdbg.abi.address import page_align
from kcovdbg.compiled_module import load_native
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64
from kcovdbg.model.location import LoadedModule
from kcovdbg.symbols.branches import describe_architecture
from kcovdbg.symbols.dwarf_reader import NO_UNIT, DwarfReader
from tests.lab import requirements
from tests.lab.initramfs import COMPILE, write_initramfs
from tests.lab.kernel import Kernel
from tests.lab.recipe import Architecture

PROGRAMS = Path(__file__).parent / "programs"
LINE_MODULE = Path(__file__).parent / "line_module"
# Of QEMU.
PLUGINS = Path(__file__).parent / "plugins"
_CALL_SIZE = 5
_GUEST_SECONDS = 1200
# Calls of these thunks are replaced by calls through the register, where the processor needs none.
_THUNK = re.compile(r"__x86_indirect_(?:call_)?thunk_(r\w+)")
_HEADER = struct.Struct("<Ii120s")


class Call(NamedTuple):
    """A system call."""

    text: str
    errno: int
    records: Sequence[int]
    """PCs, in order."""
    executed: Sequence[int]
    """Addresses of all instructions between the markers, in order, with those of interrupts."""


def find_high_half(platform: Architecture) -> int:
    """Return what all addresses of a kernel's image have above their lower 32 bits."""
    return platform.linked_at & ~0xFFFFFFFF


def build_plugin(folder: Path, platform: Architecture) -> Path:
    """Compile the plugin of QEMU that logs instructions, and return it."""
    version = subprocess.run(
        [platform.qemu, "--version"], capture_output=True, text=True, check=True
    ).stdout
    major, minor = map(int, version.split("version ")[1].split(".")[:2])
    api = 3 if (major, minor) >= (9, 1) else 2 if major >= 9 else 1
    plugin = folder / "execution_log.so"
    macros = (f"-DAPI={api}", f"-DKERNEL={find_high_half(platform):#x}")
    source = PLUGINS / "execution_log.c"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", *macros, "-o", plugin, source], check=True)
    return plugin


def _run_guest(kernel: Kernel, folder: Path, arguments: str, options: Sequence[str]) -> None:
    """Run a guest with one CPU until it ends; the folder then has what its console said.

    :param arguments: of the kernel.
    :param options: of QEMU.
    """
    platform = kernel.recipe.platform
    command = [platform.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += [*platform.machine, "-smp", "1", "-m", "512M"]
    command += ["-kernel", str(kernel.image)]
    command += ["-append", f"console={platform.console} panic=-1 {arguments}"]
    command += ["-serial", f"file:{folder / 'console'}", *options]
    subprocess.run(command, check=True, timeout=_GUEST_SECONDS)


def log_boot(kernel: Kernel, folder: Path, *, is_random: bool) -> Path:
    """Boot a guest without user space, which ends it, and return QEMU's log of the code that it
    translated.

    The folder then has the console, as ``console``, and the address of each executed instruction of
    the kernel, in words of 64 bits, as ``every``.

    :param is_random: whether the kernel chooses where its code is.
    """
    platform = kernel.recipe.platform
    requirements.ensure(requirements.for_boot(platform))
    plugin = build_plugin(folder, platform)
    options = ["-cpu", "max", "-d", "in_asm", "-D", str(folder / "log")]
    options += ["-plugin", f"{plugin},every={folder / 'every'}"]
    arguments = kernel.recipe.command_line if is_random else f"nokaslr {kernel.recipe.command_line}"
    _run_guest(kernel, folder, arguments, options)
    return folder / "log"


def log_calls(
    kernel: Kernel, folder: Path, program: str = "calls.c", modules: Sequence[Path] = ()
) -> list[Call]:
    """Boot a guest that makes system calls, and return what was executed and recorded in each.

    The folder then has where the sections of a loaded module are, as ``exchange/sections``.

    :param program: that makes the calls, by its file.
    :param modules: files that it may load.
    """
    platform = kernel.recipe.platform
    requirements.ensure(requirements.for_boot(platform) | requirements.for_userland(platform))
    plugin = build_plugin(folder, platform)
    compile_init = [f"{platform.tools}gcc", *COMPILE, "-w", "-o", str(folder / "init")]
    subprocess.run([*compile_init, str(PROGRAMS / program)], check=True)
    with (folder / "initramfs").open("wb") as stream:
        files = {f"modules/{path.name}": path.read_bytes() for path in modules}
        write_initramfs(stream, (folder / "init").read_bytes(), files)
    (folder / "exchange").mkdir()
    options = ["-cpu", platform.cpu, "-initrd", str(folder / "initramfs")]
    options += ["-fsdev", f"local,id=exchange,path={folder / 'exchange'},security_model=none"]
    options += ["-device", f"virtio-9p-{platform.virtio},fsdev=exchange,mount_tag=exchange"]
    options += ["-plugin", f"{plugin},out={folder / 'executed'}"]
    # Addresses as in the image.
    _run_guest(kernel, folder, "nokaslr loglevel=5", options)
    return read_calls(folder, find_high_half(platform))


def read_calls(folder: Path, high: int) -> list[Call]:
    """Return the calls of a guest that ended.

    :param high: the upper half of the kernel's addresses.
    """
    data = (folder / "exchange" / "calls").read_bytes()
    calls = []
    windows = _read_windows(folder / "executed")
    at = 0
    while at < len(data):
        count, errno, text = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        records = array("I", data[at : at + 4 * count])
        at += 4 * count
        calls.append(
            Call(
                text.rstrip(b"\0").decode(),
                errno,
                [high | half for half in records],
                next(windows),
            )
        )
    assert next(windows, None) is None
    return calls


def read_loaded_module(folder: Path, path: Path) -> LoadedModule:
    """Return where a guest loaded a module.

    :param folder: as of :func:`log_calls`.
    :param path: the module's file.
    """
    rows = (folder / "exchange" / "sections").read_text().splitlines()
    sections = {name: int(address, 16) for name, address in map(str.split, rows)}
    with ElfFile(path) as elf:
        texts = [section for section in elf.text_sections() if section.name in sections]
        # The kernel frees it.
        kept = [section for section in texts if not section.name.startswith(".init")]
        size = sum(page_align(section.size) for section in texts)
        places = tuple(sorted((section.name, sections[section.name]) for section in kept))
        return LoadedModule(path.stem, elf.build_id, size, places)


def _read_windows(path: Path) -> Iterator[array[int]]:
    """Yield the lower halves of addresses between each pair of markers."""
    words = array("I", path.read_bytes())
    begins = [index for index, word in enumerate(words) if word == 0xFFFFFFFF]
    for start, end in itertools.pairwise([*begins, len(words)]):
        yield words[start + 1 : end]


class Step(NamedTuple):
    """Consecutive instructions that were executed in the same context."""

    start: int
    end: int
    is_own: bool
    """Whether it is the task's, not an interrupt's."""


class Contexts(Protocol):
    """Distinguishes what a task executed from interrupts and from other tasks."""

    def split(self, window: Sequence[int]) -> list[Step] | None:
        """Return the steps of a call; None for a call that it cannot split."""

    def is_return_thunk(self, address: int) -> bool:
        """Return whether a jump to an address is a return."""

    def size_of_call(self, target: int) -> int:
        """Return how long the call is that replaces one of a function when the kernel boots."""

    def is_exception(self, address: int) -> bool:
        """Return whether an address is the entry of an exception."""

    def is_return_from_exception(self, address: int) -> bool:
        """Return whether an instruction returns to what was interrupted."""


# Of arm64: from the start of its vectors to the entry of a kernel's own exceptions, and eret.
_OWN_EXCEPTIONS: Final = 0x200
_EXCEPTION_RETURN: Final = 0xD69F03E0


class UninterruptedCalls(Contexts):
    """Leaves out each call of arm64 in which an interrupt, a softirq or another task ran.

    :param elf: the kernel's image.
    """

    def __init__(self, elf: ElfFile) -> None:
        others = ("el1h_64_irq", "el1h_64_fiq", "handle_softirqs", "__do_softirq", "cpu_switch_to")
        symbols = {symbol.name: symbol.address for symbol in elf.symbols}
        self._others = {symbols[name] & 0xFFFFFFFF for name in others if name in symbols}
        vectors = [symbols[name] for name in ("vectors", "__bp_harden_el1_vectors")]
        self._exceptions = {(start + _OWN_EXCEPTIONS) & 0xFFFFFFFF for start in vectors}
        # Of ret_to_kernel().
        address = symbols["ret_to_kernel"]
        while int.from_bytes(elf.read(address, 4), "little") != _EXCEPTION_RETURN:
            address += 4
        self._return = address & 0xFFFFFFFF

    def is_return_thunk(self, address: int) -> bool:
        """Return False: there are none."""
        return False

    def size_of_call(self, target: int) -> int:
        """Return the size of every instruction."""
        return 4

    def is_exception(self, address: int) -> bool:
        """Return whether an address is the entry of an exception."""
        return address & 0xFFFFFFFF in self._exceptions

    def is_return_from_exception(self, address: int) -> bool:
        """Return whether an instruction returns to what was interrupted."""
        return address & 0xFFFFFFFF == self._return

    def split(self, window: Sequence[int]) -> list[Step] | None:
        """Return the whole call; None where something else ran meanwhile."""
        if not self._others.isdisjoint(window):
            return None
        return [Step(0, len(window), is_own=True)]


class X86Contexts(Contexts):
    """Knows the entries of interrupts and exceptions of x86-64.

    :param elf: the kernel's image.
    """

    def __init__(self, elf: ElfFile) -> None:
        symbols = {symbol.name: symbol.address & 0xFFFFFFFF for symbol in elf.symbols}
        self._interrupts = {at for name, at in symbols.items() if name.startswith("asm_sysvec_")}
        self._interrupts |= {symbols["asm_common_interrupt"], symbols["asm_exc_nmi"]}
        # Each vector's own entry has 8 bytes, or 16 with indirect branch tracking.
        first, spurious = symbols["irq_entries_start"], symbols["spurious_entries_start"]
        step = 16 if spurious - first > 8 * 256 else 8
        behind = min(at for at in symbols.values() if at > spurious)
        self._interrupts |= {*range(first, spurious, step), *range(spurious, behind, step)}
        self._exceptions = {
            at for name, at in symbols.items() if name.startswith("asm_exc_")
        } - self._interrupts
        self._return = symbols["native_irq_return_iret"]
        self._switch = symbols["__switch_to_asm"]
        # One of the two jumps to the other, which is also called.
        self._softirqs = {
            symbols[name] for name in ("handle_softirqs", "__do_softirq") if name in symbols
        }
        self._return_thunks = {at for name, at in symbols.items() if name.endswith("return_thunk")}
        # Of a call that replaces one of a thunk: registers beyond the first eight take a prefix.
        self._replaced_sizes = {
            at: 3 if found[1][1:].isdigit() else 2
            for name, at in symbols.items()
            if (found := _THUNK.fullmatch(name))
        }

    def is_return_thunk(self, address: int) -> bool:
        """Return whether a jump to an address is a return."""
        return address & 0xFFFFFFFF in self._return_thunks

    def size_of_call(self, target: int) -> int:
        """Return how long the call is that replaces one of a function, which may be a thunk."""
        return self._replaced_sizes.get(target & 0xFFFFFFFF, _CALL_SIZE)

    def is_exception(self, address: int) -> bool:
        """Return whether an address is the entry of an exception."""
        return address & 0xFFFFFFFF in self._exceptions

    def is_return_from_exception(self, address: int) -> bool:
        """Return whether an instruction returns to what was interrupted."""
        return address & 0xFFFFFFFF == self._return

    def split(self, window: Sequence[int]) -> list[Step] | None:
        """Return the steps of a call; None where another task ran meanwhile."""
        interesting = {
            *self._interrupts,
            *self._exceptions,
            self._return,
            self._switch,
            *self._softirqs,
        }
        places = [index for index, address in enumerate(window) if address in interesting]
        steps: list[Step] = []
        stack: list[str] = []
        start, last = 0, -9
        for index in places:
            if index < start:
                # In softirqs.
                continue
            address = window[index]
            is_own = "interrupt" not in stack
            if address in self._interrupts:
                # The entry of a vector jumps to the common one.
                if index - last > 2:
                    stack.append("interrupt")
                    steps.append(Step(start, index, is_own))
                    start = index
                last = index
            elif address in self._exceptions:
                stack.append("exception")
            elif address == self._switch and is_own:
                return None
            elif address in self._softirqs and is_own:
                # Softirqs of a task's own call: until the function returns, which the address after
                # its call tells.
                end = self._find_return(window, index)
                steps += [Step(start, index, True), Step(index, end, False)]
                start = end
            elif address == self._return and stack:
                was_interrupt = stack.pop() == "interrupt"
                if was_interrupt and "interrupt" not in stack:
                    steps.append(Step(start, index + 1, False))
                    start = index + 1
        if "interrupt" in stack:
            return None
        steps.append(Step(start, len(window), True))
        return [step for step in steps if step.end > step.start]

    def _find_return(self, window: Sequence[int], index: int) -> int:
        """Return the index where a function that is called at the instruction before the index has
        returned.
        """
        call = window[index - 1]
        for after in range(index, len(window)):
            if 2 <= window[after] - call <= 7 and window[after] != window[after - 1]:
                return after
        return len(window)


class Instruction(NamedTuple):
    """An instruction of the image."""

    address: int
    end: int
    flow: int
    target: int
    frames: tuple[tuple[str, int], ...]
    """File and line of each frame that has both, innermost first."""
    line: tuple[str, int] | None
    """Of the innermost frame."""


class ImageInstructions:
    """The instructions of functions of an image, with their lines by the reader of locations."""

    def __init__(self, elf: ElfFile) -> None:
        self._elf = elf
        self._reader = DwarfReader(elf)
        self._known: dict[int, list[Instruction]] = {}

    def read(self, start: int, size: int) -> list[Instruction]:
        """Return the instructions of a part of a function."""
        if start not in self._known:
            self._known[start] = self._read(start, size)
        return self._known[start]

    def _read(self, start: int, size: int) -> list[Instruction]:
        if self._elf.header.machine == EM_AARCH64:
            return self._read_fixed(start, size)
        ffi, lib = load_native()
        code = self._elf.read(start, size)
        offsets, lengths = ffi.new("uint32_t[]", size), ffi.new("uint8_t[]", size)
        flows, displacements = ffi.new("uint8_t[]", size), ffi.new("int64_t[]", size)
        count = lib.kcovdbg_x86_decode_all(code, size, offsets, lengths, flows, displacements)
        addresses = array("Q", [start + offsets[index] for index in range(count)])
        lines = self._locate(addresses)
        found = []
        for index in range(count):
            end = addresses[index] + lengths[index]
            frames, line = lines[index]
            found.append(
                Instruction(
                    addresses[index], end, flows[index], end + displacements[index], frames, line
                )
            )
        return found

    def _read_fixed(self, start: int, size: int) -> list[Instruction]:
        """Return instructions of 4 bytes."""
        ffi, lib = load_native()
        architecture = describe_architecture(self._elf.header.machine)
        code = self._elf.read(start, size)
        one = ffi.new("struct kcovdbg_instruction *")
        addresses = array("Q", range(start, start + size, 4))
        found = []
        for address, (frames, line) in zip(addresses, self._locate(addresses), strict=True):
            offset = address - start
            lib.kcovdbg_decode(architecture, code[offset : offset + 4], 4, one)
            end = address + 4
            target = end + one.displacement
            found.append(Instruction(address, end, one.flow, target, frames, line))
        return found

    def _locate(
        self, addresses: array[int]
    ) -> list[tuple[tuple[tuple[str, int], ...], tuple[str, int] | None]]:
        """Return the lines of all frames of addresses, and that of the innermost one."""
        lines: list[tuple[tuple[tuple[str, int], ...], tuple[str, int] | None]] = [
            ((), None)
        ] * len(addresses)
        units = self._reader.find_units(addresses)
        for unit in set(units) - {NO_UNIT}:
            places = [index for index, of in enumerate(units) if of == unit]
            chosen = array("Q", [addresses[index] for index in places])
            contents = self._reader.read([unit], [len(places)], chosen, everything=False)
            chains, found = contents.chains, contents.locations.arrays()
            strings = ["", *found.strings()]
            for place, chain in zip(places, chains, strict=True):
                start = found.chain_ends[chain - 1] if chain else 0
                if chain == NO_UNIT or start >= found.chain_ends[chain]:
                    continue
                frames = []
                for number in found.chain_frames[start : found.chain_ends[chain]]:
                    file, line = found.frames[4 * number + 1], found.frames[4 * number + 2]
                    frames.append((strings[file], line) if file and line else None)
                lines[place] = tuple(frame for frame in frames if frame is not None), frames[0]
        return lines


class Cut(NamedTuple):
    """A call up to one of its instructions, as a dump has it."""

    executed: set[int]
    """Addresses of the task's own instructions until then."""
    records: Sequence[int]
    stack: Sequence[int]
    """Return addresses."""
    positions: Sequence[int]
    """The next instruction, and those that exceptions interrupted."""


class _Frame(NamedTuple):
    """A call that did not return yet, or an exception."""

    start: int
    """The call, or the instruction that was interrupted."""
    end: int
    """The return address."""
    is_call: bool


class CallReplay:
    """Follows a call instruction by instruction, as a processor does.

    :param find: returns the instruction at an address, None where no function is.
    :param find_function: returns the function that an address is in, None where it is in none.
    :param points: return addresses of the callback.
    :param contexts: of the kernel.
    """

    def __init__(
        self,
        find: Callable[[int], Instruction | None],
        find_function: Callable[[int], object],
        points: AbstractSet[int],
        contexts: Contexts,
    ) -> None:
        self._find = find
        self._find_function = find_function
        self._points = points
        self._contexts = contexts

    def cut(self, own: Sequence[int], wanted: Sequence[int]) -> Iterator[Cut]:
        """Yield the states at some indexes, or soon after them where that is inside the callback.

        :param own: what the task executed.
        :param wanted: ascending.
        """
        _, lib = load_native()
        calls = (lib.KCOVDBG_FLOW_CALL, lib.KCOVDBG_FLOW_INDIRECT_CALL)
        straight = (lib.KCOVDBG_FLOW_NEXT, lib.KCOVDBG_FLOW_PADDING)
        stack: list[_Frame] = []
        executed: set[int] = set()
        records: list[int] = []
        todo = list(wanted)
        for index, address in enumerate(own):
            previous = own[index - 1] if index else 0
            before = self._find(previous)
            if self._contexts.is_exception(address):
                stack.append(_Frame(previous, previous, is_call=False))
            elif self._contexts.is_return_from_exception(previous):
                while stack and stack.pop().is_call:
                    pass
            elif before is not None and before.flow in calls and address != before.end:
                end = before.end
                if before.flow == lib.KCOVDBG_FLOW_CALL and address != before.target:
                    size = self._contexts.size_of_call(before.target)
                    end = previous + min(end - previous, size)
                stack.append(_Frame(previous, end, is_call=True))
            elif (
                before is not None
                and before.flow in straight
                and address not in (before.end, previous)
                and self._find_function(address) != self._find_function(previous)
            ):
                # A call that the kernel put there when it booted, in place of what the image has. What
                # leads to the same function is the jump of a static key.
                end = previous + self._contexts.size_of_call(address)
                stack.append(_Frame(previous, end, is_call=True))
            elif self._may_return(before):
                self._pop(stack, address)
                if address in self._points:
                    records.append(address)
            is_inside = stack and stack[-1].end in self._points
            while todo and index >= todo[0] and not is_inside:
                todo.pop(0)
                returns = [frame.end for frame in stack if frame.is_call]
                interrupted = [frame.end for frame in stack if not frame.is_call]
                yield Cut(set(executed), list(records), returns, [address, *interrupted])
            executed.add(address)

    def _may_return(self, before: Instruction | None) -> bool:
        """Return whether an instruction may be a return; thunks are in no function."""
        _, lib = load_native()
        if before is None or before.flow == lib.KCOVDBG_FLOW_RETURN:
            return True
        # A module jumps to thunks of the kernel, whose addresses its file does not have.
        is_outside = before.flow == lib.KCOVDBG_FLOW_JUMP and self._find(before.target) is None
        return is_outside or self._contexts.is_return_thunk(before.target)

    def _pop(self, stack: list[_Frame], address: int) -> None:
        """Remove the frame that a return to an address leaves, and those above."""
        for depth in range(len(stack) - 1, -1, -1):
            if stack[depth].is_call and stack[depth].end == address:
                del stack[depth:]
                return
