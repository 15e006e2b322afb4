# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that GDB has open: QEMU's stub, kgdb, an ELF core, /proc/kcore.

Addresses of symbols come from the vmlinux file's own table, shifted by what the target says; GDB's symbols are left as their
user has them. Types are looked up by GDB's Python functions, which read one compilation unit where expressions read hundreds.
GDB silently answers from the vmlinux file where it has no target, or where the target lacks a page: every way to that is closed
here, before the first answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import gdb
from kcovdbg.errors import KcovdbgError, MissingSymbolError, MissingTypeError, ReadError, TargetError
from kcovdbg.model.location import Frame
from kcovdbg.target import Member, SlabSource, StackSource, Symbol, VmallocSource, VmaSource
from kcovdbg.target.image import ElfFile
from kcovdbg.target.relocation import (
    MismatchError,
    Read,
    check_image,
    offset_of_idt,
    read_banner_of,
    release_of,
    search_offset,
    user_mode_of_cpus,
)

# Statics of kernel/kcov.c, in every version. The unit that defines them defines most of what is read, task_struct included:
# looked at first, it spares others.
_ANCHORS: Final = ("kcov_fops", "kcov_ioctl")
_STRUCTS: Final = {gdb.TYPE_CODE_STRUCT: "struct", gdb.TYPE_CODE_UNION: "union", gdb.TYPE_CODE_ENUM: "enum"}
# 56 bits are what five-level page tables (x86-64, riscv64) and 52-bit addresses (arm64) leave to the kernel at most.
_UPPER_HALF_START: Final = 0xFF00_0000_0000_0000
_PAGE_SIZE: Final = 0x1000
_NO_KERNEL: Final = "load the kernel's vmlinux with debug info: symbol-file VMLINUX"
# QEMU's stub takes and sends 4096 characters, two for each byte.
_PACKET_SIZE: Final = 2048
_NOTHING_OPEN: Final = "connect to a guest (target remote ADDRESS), or open a core (core-file PATH)"


class Way(NamedTuple):
    """How the kernel's shift was found."""

    offset: int
    description: str


class GdbKernel:
    """The kernel among GDB's symbol files: its vmlinux, read as a file, and its types, cached.

    :param objfile: the symbol file.
    :param image: the same file, with a symbol table.
    """

    def __init__(self, objfile: gdb.Objfile, image: ElfFile) -> None:
        self.objfile = objfile
        self.image = image
        self._types: dict[str, gdb.Type | None] = {}
        self._members: dict[tuple[str, str], Member | None] = {}

    @cached_property
    def relocation(self) -> int:
        """What GDB's own symbols are shifted by, because their user loaded them so."""
        for name in _ANCHORS:
            symbol = self.image.symbol(name)
            known = self.objfile.lookup_static_symbol(name) if symbol is not None else None
            if symbol is None or known is None or not known.is_valid():
                continue
            try:
                address = known.value().address
            except gdb.error:
                continue
            if address is not None:
                return int(address) - symbol.address
        return 0

    def find_type(self, name: str) -> gdb.Type:
        """Return a type by its name.

        :raises MissingTypeError: when the debug info has no such type.
        """
        if name not in self._types:
            # The anchor's unit is read now, if it wasn't.
            _ = self.relocation
            try:
                self._types[name] = gdb.lookup_type(name).strip_typedefs()
            except gdb.error:
                self._types[name] = None
        found = self._types[name]
        if found is None:
            raise MissingTypeError(f"the debug info has no {name}")
        return found

    def find_member(self, type_name: str, path: str) -> Member:
        """Find a member as :meth:`kcovdbg.target.Target.member` says.

        :raises MissingTypeError: when the type or the member doesn't exist.
        """
        key = (type_name, path)
        if key not in self._members:
            self._members[key] = _resolve(self.find_type(type_name), path, big_endian=self.image.big_endian)
        found = self._members[key]
        if found is None:
            raise MissingTypeError(f"{type_name} has no member {path}")
        return found


class GdbTarget:
    """The kernel of GDB's selected inferior.

    Made anew for each command, as its user may have done anything meanwhile; what costs is cached in the kernel's symbols.

    :param kernel: its symbols.
    :param core: the core that is read, None on a connection.
    :param way: what its image is shifted by.
    """

    vmas: VmaSource | None = None
    vmalloc: VmallocSource | None = None
    slab: SlabSource | None = None
    stacks: StackSource | None = None
    packet_size: int | None = None
    """Bytes that one packet of a stub brings; None where memory is at hand."""

    def __init__(self, kernel: GdbKernel, name: str, core: ElfFile | None, way: Way) -> None:
        self.kernel = kernel
        self.name = name
        self.way = way
        self._core = core
        self._read = make_reader(core)
        connection = gdb.selected_inferior().connection
        if connection is not None and "remote" in connection.type:
            self.packet_size = _PACKET_SIZE
        self.live = core is not None and core.path == Path("/proc/kcore")
        self.word_size = kernel.image.word_size
        self.big_endian = kernel.image.big_endian
        self.kaslr_offset = way.offset
        self.machine = kernel.image.machine
        self.build_id = kernel.image.build_id
        banner = read_banner_of(kernel.image)
        info = core.vmcoreinfo if core is not None else {}
        self.release = (banner and release_of(banner)) or info.get("OSRELEASE") or "unknown"
        self.notes: Sequence[str] = (f"KASLR offset {way.offset:#x}: {way.description}",)

    @cached_property
    def kernel_range(self) -> tuple[int, int]:
        """First and last address that a pointer of this kernel can have."""
        last = (1 << 8 * self.word_size) - 1
        init = self.kernel.image.symbol("init_task")
        # The upper half; but a kernel may be a process itself (User Mode Linux), or have all addresses for itself (s390).
        if init is not None and init.address >> 63:
            return _UPPER_HALF_START, last
        return _PAGE_SIZE, last

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it can't be read, or is in the vmlinux file only.
        """
        return self._read(address, size)

    def symbol(self, name: str) -> Symbol:
        """Find a symbol.

        :raises MissingSymbolError: when the kernel has none.
        """
        found = self.kernel.image.symbol(name)
        if found is None:
            raise MissingSymbolError(f"{self.kernel.image.path.name} has no symbol {name}")
        return found._replace(address=found.address + self.kaslr_offset)

    def symbol_name(self, address: int) -> str | None:
        """Name the symbol that an address lies in, None where none does."""
        found = self.kernel.image.symbol_name(address - self.kaslr_offset)
        if found is None:
            # A module's symbols are in symbol files of their own, where the user has loaded them.
            match = re.match(r"(\S+)(?: \+ \d+)? in section", gdb.execute(f"info symbol {address:#x}", to_string=True))
            found = match[1] if match is not None else None
        return found

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        """Locate an instruction by GDB's line tables: the functions, and of the innermost one its line.

        :param address: in the running kernel; for a return address, one less.
        :return: innermost first; empty where debug info doesn't cover it.
        """
        address = self.address_in_gdb(address)
        try:
            line = gdb.find_pc_line(address)
            block = gdb.block_for_pc(address)
        except (gdb.error, OverflowError):
            return ()
        names: list[str] = []
        while block is not None and not block.is_static and not block.is_global:
            if block.function is not None:
                names.append(block.function.linkage_name)
            block = block.superblock
        if not names:
            return ()
        file = line.symtab.filename.removeprefix("./") if line.symtab is not None else None
        inner = Frame(names[0], file, line.line or None, None)
        return (inner, *(Frame(name, None, None, None) for name in names[1:]))

    def address_in_gdb(self, address: int) -> int:
        """Return where GDB's symbols have what is at an address of the running kernel."""
        # The kernel's are where their user loaded them, a module's where the module is.
        if self.kernel.image.symbol_name(address - self.kaslr_offset) is None:
            return address
        return address + self.kernel.relocation - self.kaslr_offset

    def type_size(self, type_name: str) -> int:
        """Return a type's size in bytes.

        :raises MissingTypeError: when the debug info has none.
        """
        return int(self.kernel.find_type(type_name).sizeof)

    def member(self, type_name: str, path: str) -> Member:
        """Find a member.

        :raises MissingTypeError: when the type or the member doesn't exist.
        """
        return self.kernel.find_member(type_name, path)

    def member_names(self, type_name: str) -> Sequence[str]:
        """Name the members of a structure, those of anonymous structures included.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return _member_names(self.kernel.find_type(type_name))

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Return the enumerators of a type.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return {str(field.name): int(field.enumval) for field in self.kernel.find_type(type_name).fields()}

    def variable_type(self, name: str) -> tuple[str, int | None]:
        """Return a variable's type name, for an array the element's, and the array's length or None.

        :raises MissingSymbolError: when there is no such variable.
        """
        objfile = self.kernel.objfile
        _ = self.kernel.relocation
        symbol = objfile.lookup_static_symbol(name) or objfile.lookup_global_symbol(name)
        if symbol is None or symbol.type is None:
            raise MissingSymbolError(f"the debug info has no variable {name}")
        found = symbol.type.strip_typedefs()
        if found.code == gdb.TYPE_CODE_ARRAY:
            return _type_name(found.target()), _array_length(found)
        return _type_name(symbol.type), None

    @cached_property
    def _possible_cpus(self) -> tuple[int, ...]:
        mask = self.kernel.image.symbol("__cpu_possible_mask")
        # Without SMP there is one. A static function's bits: cpu_possible_bits before v4.5.
        mask = mask or self.kernel.image.symbol("cpu_possible_bits")
        if mask is None or not mask.size:
            return (0,)
        data = self.read(mask.address + self.kaslr_offset, mask.size)
        bits = 0
        for start in range(0, len(data), self.word_size):
            bits |= self._word(data[start : start + self.word_size]) << 8 * start
        return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)

    def _word(self, data: bytes) -> int:
        return int.from_bytes(data, "big" if self.big_endian else "little")

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs."""
        return self._possible_cpus

    @cached_property
    def _per_cpu_offsets(self) -> Sequence[int] | None:
        table = self.kernel.image.symbol("__per_cpu_offset")
        if table is None:
            return None
        count = max(self._possible_cpus) + 1
        data = self.read(table.address + self.kaslr_offset, count * self.word_size)
        return [self._word(data[start : start + self.word_size]) for start in range(0, len(data), self.word_size)]

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable.
        """
        image = self.kernel.image
        symbol = image.symbol(name)
        if symbol is None:
            raise MissingSymbolError(f"{image.path.name} has no symbol {name}")
        offsets = self._per_cpu_offsets
        if offsets is None:
            return symbol.address + self.kaslr_offset
        start = image.symbol("__per_cpu_start")
        # x86-64 linked per-CPU variables from 0 on up to Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative percpu
        # offsets") (in v6.15); these don't move with the kernel. Elsewhere they lie in the image and do.
        shift = 0 if start is not None and start.address == 0 else self.kaslr_offset
        return symbol.address + shift + offsets[cpu] & (1 << 8 * self.word_size) - 1


def make_reader(core: ElfFile | None) -> Read:
    """Return a function that reads the target's memory, and never the vmlinux file.

    :param core: the core that GDB reads; without one the connection answers for all memory.
    """

    def read(address: int, size: int) -> bytes:
        if core is not None and not core.holds(address, size):
            # GDB would answer from the vmlinux file here, or with zeros from a .bss.
            raise ReadError(f"the core doesn't hold {size} bytes at {address:#x}", address)
        try:
            return bytes(gdb.selected_inferior().read_memory(address, size))
        except gdb.MemoryError as error:
            raise ReadError(f"can't read {size} bytes at {address:#x}", address) from error
        except gdb.error as error:
            raise TargetError(_one_line(error)) from error
        except OverflowError:
            raise ReadError(f"{address:#x} is no address", address) from None

    return read


# The kernels looked at so far, by file; dropped when GDB drops the symbol file or the file changes.
_kernels: dict[str, GdbKernel] = {}
# How the last target's shift was found: it is looked at first, and compared with the target's memory again.
_last_way: dict[tuple[str, str], Way] = {}


def find_kernel() -> GdbKernel:
    """Return the kernel among GDB's symbol files.

    :raises TargetError: when there is none.
    """
    stripped: Path | None = None
    for objfile in gdb.objfiles():
        if not objfile.is_valid() or objfile.filename is None:
            continue
        known = _kernels.get(objfile.filename)
        if known is not None and known.objfile.is_valid() and known.objfile == objfile and _is_unchanged(known.image):
            return known
        try:
            image = ElfFile(Path(objfile.filename))
        except TargetError:
            # Of the system's own making, such as a vdso.
            continue
        if image.symbol("init_task") is not None:
            kernel = GdbKernel(objfile, image)
            _kernels[objfile.filename] = kernel
            return kernel
        if not image.has_symbols:
            stripped = image.path
    if stripped is not None:
        raise TargetError(f"{stripped} has no symbol table", hint=_NO_KERNEL)
    raise TargetError("no kernel is loaded", hint=_NO_KERNEL)


def _is_unchanged(image: ElfFile) -> bool:
    try:
        status = image.path.stat()
    except OSError:
        return False
    return bool(image.stamp == (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns))


def open_target(kaslr_offset: int | None = None) -> GdbTarget:
    """Return the kernel of the selected inferior, once it is certain that answers come from it.

    :param kaslr_offset: what its image is shifted by, where the user says so.
    :raises TargetError: when there is no target, or what GDB would read isn't the kernel that the vmlinux is of.
    """
    inferior = gdb.selected_inferior()
    connection = inferior.connection
    if connection is None or not connection.is_valid():
        raise TargetError("there is no target: GDB would answer from the vmlinux file", hint=_NOTHING_OPEN)
    kernel = find_kernel()
    core: ElfFile | None = None
    name = connection.details or connection.type
    if connection.type == "core":
        core = _open_core()
        name = str(core.path)
    else:
        _check_stopped()
    read = make_reader(core)
    key = (kernel.image.path.as_posix(), f"{connection.num} {name}")
    if core is not None:
        _check_core(kernel.image, core)
    way = _find_way(kernel, core, read, kaslr_offset, _last_way.get(key))
    _last_way.clear()
    _last_way[key] = way
    return GdbTarget(kernel, name, core, way)


def _check_stopped() -> None:
    thread = gdb.selected_thread()
    if thread is None:
        raise TargetError("the target has no CPU to look through", hint=_NOTHING_OPEN)
    if thread.is_running():
        raise TargetError("the target is running", hint="stop it first: C-c, or interrupt")


def _open_core() -> ElfFile:
    """Return the core that GDB reads."""
    inferior = gdb.selected_inferior()
    # Since GDB 18 Python may ask; before, GDB's own description has the name.
    corefile = getattr(inferior, "corefile", None)
    filename = getattr(corefile, "filename", None)
    if filename is None:
        text = gdb.execute("info files", to_string=True)
        match = re.search(r"^Local core dump file:\s+[`'](.*)', file type ", text, re.MULTILINE)
        # In another language than English the line that ends so is the core's when it isn't the program's.
        names = [match[1]] if match is not None else re.findall(r"^\s+[`'«\"](.*?)['»\"],[^\n]*\belf\d\d-", text, re.MULTILINE)
        cores = [path for path in names if _is_core(Path(path))]
        if not cores:
            raise TargetError("the core's file can't be found", hint="open it again: core-file PATH")
        filename = cores[0]
    return ElfFile(Path(filename))


def _is_core(path: Path) -> bool:
    try:
        return ElfFile(path).is_core
    except TargetError:
        return False


def _check_core(image: ElfFile, core: ElfFile) -> None:
    """Refuse a core in which the kernel's addresses mean nothing."""
    init = image.symbol("init_task")
    if init is None or not init.address >> 63 or image.word_size == 4:
        return
    if not any(segment.address >> 63 for segment in core.segments):
        raise TargetError(
            f"{core.path} holds physical addresses only: GDB would answer from the vmlinux file",
            hint=f"read it with: kcovdbg -c {core.path} -s {image.path}",
        )


def _find_way(kernel: GdbKernel, core: ElfFile | None, read: Read, given: int | None, last: Way | None) -> Way:
    image = kernel.image
    info = core.vmcoreinfo if core is not None else {}
    if given is not None:
        check_image(image, given, read, info)
        return Way(given, "as set by `set kcov kaslr-offset`")
    if last is not None:
        try:
            check_image(image, last.offset, read, info)
            return last
        except (MismatchError, ReadError):
            # The guest was restarted, or its CPU is in user mode now.
            pass
    failure: KcovdbgError | None = None
    for way in _ways(kernel, core, read):
        try:
            check_image(image, way.offset, read, info)
            return way
        except (MismatchError, ReadError) as error:
            # The first failure says most: later ways are guesses.
            failure = failure or error
    if core is None:
        _refuse_physical()
        _refuse_user_mode(image, read)
    if isinstance(failure, MismatchError):
        raise TargetError(str(failure), hint="load the vmlinux of the target's kernel: symbol-file VMLINUX")
    raise TargetError(
        f"the kernel isn't found in memory: {failure}" if failure is not None else "the kernel isn't found in memory",
        hint="say what it is shifted by: set kcov kaslr-offset OFFSET",
    )


def _ways(kernel: GdbKernel, core: ElfFile | None, read: Read) -> Iterator[Way]:
    image = kernel.image
    if core is not None and "KERNELOFFSET" in core.vmcoreinfo:
        yield Way(int(core.vmcoreinfo["KERNELOFFSET"], 16), "from the core's VMCOREINFO")
    if core is None and image.machine == "x86_64":
        offset = offset_of_idt(image, _monitor("info registers"), read)
        if offset is not None:
            yield Way(offset, "from the IDT, by QEMU's `info registers`")
    if kernel.relocation:
        yield Way(kernel.relocation, "as the loaded symbols are relocated")
    yield Way(0, "not shifted")
    offset = search_offset(image, read)
    if offset is not None:
        yield Way(offset, "found by searching for linux_banner")


def _monitor(command: str) -> str:
    """Ask what is behind the connection; what knows no such command answers nothing."""
    try:
        return gdb.execute(f"monitor {command}", to_string=True)
    except gdb.error:
        return ""


def _refuse_physical() -> None:
    """Refuse a stub of QEMU's that another debugger left reading physical memory: it does so for all that connect."""
    send = getattr(gdb.selected_inferior().connection, "send_packet", None)
    try:
        answer = send("qqemu.PhyMemMode") if send is not None else b""
    except gdb.error:
        return
    if answer == b"1":
        raise TargetError(
            "QEMU's stub answers from physical memory: another debugger told it to",
            hint="have it read virtual memory again: maint packet Qqemu.PhyMemMode:0",
        )


def _refuse_user_mode(image: ElfFile, read: Read) -> None:
    registers = _monitor("info registers -a")
    in_user_mode = user_mode_of_cpus(registers)
    thread = gdb.selected_thread()
    if thread is None:
        return
    # QEMU's stub numbers threads from 1 on, one for each virtual CPU in their order.
    cpu = thread.ptid[1] - 1
    if not 0 <= cpu < len(in_user_mode) or not in_user_mode[cpu]:
        return
    others = [number for number, is_user in enumerate(in_user_mode) if not is_user]
    threads = {other.ptid[1] - 1: other.num for other in gdb.selected_inferior().threads()}
    offset = offset_of_idt(image, registers, read)
    entry = image.symbol("do_syscall_64")
    if others and others[0] in threads:
        hint = f"look through a CPU that is in the kernel: thread {threads[others[0]]}"
    elif offset is not None and entry is not None:
        hint = f"let it enter the kernel: thbreak *{entry.address + offset:#x}, then continue"
    else:
        hint = "let it run and stop it again, until it is in the kernel"
    raise TargetError(f"CPU {cpu} is in user mode with page-table isolation, where the kernel's memory isn't mapped", hint=hint)


def _one_line(error: gdb.error) -> str:
    return " ".join(str(error).split())


# Types.


def _type_name(found: gdb.Type) -> str:
    name = found.name
    if name is None:
        return str(found)
    # GDB's names of structures lack the keyword in C.
    keyword = _STRUCTS.get(found.code)
    return f"{keyword} {name}" if keyword is not None and not name.startswith(f"{keyword} ") else name


def _array_length(found: gdb.Type) -> int:
    try:
        low, high = found.range()
    except (gdb.error, RuntimeError):
        # A flexible array has no bounds.
        return 0
    return max(0, int(high) - int(low) + 1)


def _fields(found: gdb.Type) -> Sequence[gdb.Field]:
    return found.fields() if found.code in (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION) else ()


def _member_names(found: gdb.Type) -> list[str]:
    names: list[str] = []
    for field in _fields(found):
        if field.name:
            names.append(field.name)
        elif field.type is not None:
            names += _member_names(field.type.strip_typedefs())
    return names


def _find_field(found: gdb.Type, name: str, start: int) -> tuple[gdb.Field, int] | None:
    """Find a member and its place in bits, in anonymous structures too."""
    for field in _fields(found):
        place = start + int(getattr(field, "bitpos", 0))
        if field.name == name:
            return field, place
        if not field.name and field.type is not None:
            inside = _find_field(field.type.strip_typedefs(), name, place)
            if inside is not None:
                return inside
    return None


def _resolve(found: gdb.Type, path: str, *, big_endian: bool) -> Member | None:
    place = 0
    field: gdb.Field | None = None
    for name in path.split("."):
        step = _find_field(found, name, place)
        if step is None or step[0].type is None:
            return None
        field, place = step
        found = step[0].type.strip_typedefs()
    assert field is not None
    assert field.type is not None
    size = int(found.sizeof)
    signed = found.code in (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_ENUM) and int(gdb.Value(-1).cast(found)) < 0
    if found.code == gdb.TYPE_CODE_ARRAY:
        return Member(place // 8, size, _type_name(found.target()), length=_array_length(found))
    if field.bitsize:
        offset = place // 8 // size * size
        bit = place - 8 * offset
        low = 8 * size - bit - field.bitsize if big_endian else bit
        return Member(offset, size, _type_name(field.type), signed, bit_offset=low, bit_size=field.bitsize)
    return Member(place // 8, size, _type_name(field.type), signed)
