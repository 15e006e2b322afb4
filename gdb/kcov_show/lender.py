# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lend the child what GDB has open: memory, registers, and the monitor of a stub.

Only this file sends packets to a stub. After each request it restores the stub's mode of memory,
and GDB's selected thread and frame.
"""

from __future__ import annotations

import atexit
import os
import re
import time
from typing import Any, Callable, List, Optional, Tuple

import gdb

from .child import Child, Fields, LostError
from .output import write
from .pipeline import Pipeline
from .watch import Watch

_EVENTS = (
    "cont",
    "stop",
    "memory_changed",
    "register_changed",
    "new_objfile",
    "clear_objfiles",
    "inferior_deleted",
    "connection_removed",
)
# The monitor commands that the child may run: none of them changes the machine.
_MONITOR_COMMANDS = ("info registers", "info mtree -f", "info version", "info status")
_PHYSICAL, _VIRTUAL = b"1", b"0"
_PAGE = 4096
# Bytes of memory that one packet can ask for. kgdb's buffer has 1024 characters on x86 (BUFMAX),
# two for each byte, and kgdb does not check that an answer fits.
_KGDB_READ_SIZE = 504
# GDB reads this much from a stub that does not name the size of its packets.
_OTHER_READ_SIZE = 156
# kgdb numbers the threads of CPUs downwards from -2.
_KGDB_FIRST_THREAD = 0xFFFF_FFFE
_THREAD_MASK = 0xFFFF_FFFF

# The exit statuses of kcovdbg itself.
_FAILED, _INTERRUPTED = 2, 130
# Seconds between a first C-c, which the child gets, and a second one, which ends it. Sooner, the
# second is the same: one C-c may raise in Python, and again in the next call of GDB.
_PATIENCE = 1.0

Write = Callable[[str, str], None]
Deliver = Callable[["Fields"], None]


class _RunsInBackgroundError(Exception):
    """The machine runs in the background, and the child answers once the machine has stopped."""


class Stub:
    """A stub that GDB is connected to.

    :param connection: GDB's connection.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        # The mode of memory before the current request, and now; None between requests.
        self._mode_before: Optional[bytes] = None
        self._mode: Optional[bytes] = None
        self._read_size = _OTHER_READ_SIZE
        self.kind = "other"
        if self._send("qqemu.sstepbits"):
            self.kind = "qemu"
            self._read_size = self._find_qemu_read_size()
            self._leave_physical_memory()
        # kgdb's name of its thread -2 (kernel/debug/gdbstub.c).
        elif self._send("qThreadExtraInfo,fffffffe") == b"shadowCPU0".hex().encode():
            self.kind = "kgdb"
            self._read_size = _KGDB_READ_SIZE

    def _send(self, packet: str) -> bytes:
        """Send a packet and return its answer, which is empty if the stub does not know the
        packet.
        """
        answer: Optional[bytes] = self.connection.send_packet(packet)
        return answer or b""

    def _find_qemu_read_size(self) -> int:
        # GDB has asked this before; the second answer changes nothing between GDB and the stub.
        answer = self._send("qSupported:multiprocess+;hwbreak+")
        found = re.search(rb"PacketSize=([0-9a-f]+)", answer)
        if found is None:
            return _OTHER_READ_SIZE
        packet_size = int(found[1], 16)
        if packet_size and packet_size % _PAGE == 0:
            # QEMU reads exactly half of its packet size: a page takes two packets, not three.
            return packet_size // 2
        return max((packet_size - 4) // 2, _OTHER_READ_SIZE)

    def _leave_physical_memory(self) -> None:
        """Undo what a debugger left behind that ended while it read physical memory: QEMU keeps
        the mode after the connection.
        """
        if self._send("qqemu.PhyMemMode") == _PHYSICAL:
            self._set_mode(_VIRTUAL)
            write(
                "err",
                "kcovdbg: QEMU's stub read physical memory, as another debugger left it; "
                "now it reads virtual memory\n",
            )

    def _set_mode(self, mode: bytes) -> bytes:
        return self._send("Qqemu.PhyMemMode:" + mode.decode())

    def use_mode(self, mode: bytes) -> bool:
        """Make reads physical or virtual, until :meth:`restore`; return whether the stub can."""
        if self.kind != "qemu":
            return mode == _VIRTUAL
        if self._mode is None:
            self._mode_before = self._mode = self._send("qqemu.PhyMemMode")
        if self._mode not in (_PHYSICAL, _VIRTUAL):
            return mode == _VIRTUAL
        if self._mode != mode:
            # The mode is unknown until the answer is here: C-c may come in between.
            self._mode = b"?"
            if self._set_mode(mode) != b"OK":
                self._mode = self._mode_before
                return False
            self._mode = mode
        return True

    def restore(self) -> None:
        """Restore the mode from before the request; can be called again if C-c ends a call."""
        before = self._mode_before
        if before in (_PHYSICAL, _VIRTUAL) and self._mode != before:
            self._set_mode(before)
        self._mode_before = self._mode = None

    def read(self, address: int, size: int, *, physical: bool) -> Tuple[bytes, Optional[str]]:
        """Return the memory at an address up to the first error, and that error."""
        data = bytearray()
        if not self.use_mode(_PHYSICAL if physical else _VIRTUAL):
            return b"", "no physical memory"
        while len(data) < size:
            count = min(size - len(data), self._read_size)
            answer = self._send("m%x,%x" % (address + len(data), count))
            if len(answer) != 2 * count:
                return bytes(data), answer[:20].decode("ascii", "replace") or "no answer"
            data += bytes.fromhex(answer.decode())
        return bytes(data), None

    def find_thread(self, number: int) -> Optional[gdb.InferiorThread]:
        """Return the thread of a CPU.

        :param number: number of the thread in QEMU's stub: 1 for the first CPU.
        """
        for thread in gdb.selected_inferior().threads():
            if self.find_cpu(thread) == number - 1:
                return thread
        return None

    def find_cpu(self, thread: gdb.InferiorThread) -> int:
        """Return the number of a thread's CPU, from 0."""
        number: int = thread.ptid[1] & _THREAD_MASK
        if self.kind == "kgdb":
            return _KGDB_FIRST_THREAD - number
        return number - 1


class _Request:
    """A message that the child answers; for the parameters see :meth:`Lender.ask`."""

    def __init__(
        self,
        op: str,
        number: int,
        write: Optional[Write] = None,
        deliver: Optional[Deliver] = None,
        *,
        may_run: bool = False,
        may_type: bool = False,
    ) -> None:
        self.op = op
        self.number = number
        self.write = write
        self.deliver = deliver
        self.may_run = may_run
        self.may_type = may_type
        # When C-c came, by time.monotonic().
        self.interrupted: Optional[float] = None


class Lender:
    """Start the child, send it requests, and answer what it asks meanwhile."""

    def __init__(self) -> None:
        self._child: Optional[Child] = None
        # Changes with each event after which the child must read again.
        self._generation = 0
        # Messages to the child that have a number.
        self._count = 0
        self._request: Optional[_Request] = None
        self._stub: Optional[Stub] = None
        self._core: Optional[Tuple[Any, Optional[str]]] = None
        self._watch: Optional[Watch] = None
        self._pipeline: Optional[Pipeline] = None
        for name in _EVENTS:
            registry = getattr(gdb.events, name, None)
            if registry is not None:
                registry.connect(self._note)
        atexit.register(self._end)

    def _note(self, event: object) -> None:
        self._generation += 1

    def start(self) -> Child:
        """Return the child, and start it if it does not run; it may not serve yet.

        :raises gdb.GdbError: when it cannot be started.
        """
        if self._child is None or not self._child.is_alive():
            self._end()
            self._child = Child()
        return self._child

    def greet(self, patience: float) -> None:
        """Start the child, and wait until it serves.

        :param patience: in seconds.
        :raises gdb.GdbError: when the child cannot be used, or does not serve in time.
        """
        self.start().greet(patience)

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    # What GDB has open.

    def describe(self) -> Fields:
        """Return what GDB has open, and in which state."""
        state: Fields = {
            "generation": self._generation,
            "kaslr_offset": self._find_offset(),
            "moves": False,
            "source_folders": _find_source_folders(),
            "substitutions": _find_substitutions(),
        }
        connection = gdb.selected_inferior().connection
        if connection is None or not connection.is_valid():
            hint = "connect to a guest (target remote ADDRESS), or open a core (core-file PATH)"
            return _refuse(state, "no target", hint)
        state["connection"] = "%d %s" % (connection.num, connection.details)
        state["name"] = connection.details or connection.type
        objfiles = (objfile for objfile in gdb.objfiles() if objfile.is_valid())
        state["symbols"] = [objfile.filename for objfile in objfiles if objfile.filename]
        if connection.type == "core":
            return self._describe_core(state, connection)
        if not hasattr(connection, "send_packet"):
            hint = "target remote ADDRESS, or core-file PATH"
            return _refuse(state, "GDB debugs a process, not a kernel", hint)
        return self._describe_machine(state, connection)

    def _describe_core(self, state: Fields, connection: Any) -> Fields:
        if self._core is None or self._core[0] is not connection:
            self._core = connection, _find_core(gdb.selected_inferior())
        state["core"] = self._core[1]
        if state["core"] is None:
            problem = "could not find the core file that GDB reads"
            return _refuse(state, problem, "open it again: core-file PATH")
        selected = gdb.selected_thread()
        # A core has a note for each CPU, which GDB takes for a thread.
        state["cpu"] = None if selected is None else selected.num - 1
        return state

    def _describe_machine(self, state: Fields, connection: Any) -> Fields:
        thread = gdb.selected_thread()
        if thread is None:
            hint = "connect to a guest: target remote ADDRESS"
            return _refuse(state, "the target has no CPU", hint)
        if thread.is_running():
            # In the condition of a breakpoint, GDB says that the thread runs, but has its frames.
            # No event says when the machine moves on.
            state["moves"] = True
            try:
                gdb.selected_frame()
            except gdb.error:
                return _refuse(state, "the target is running", "stop it first: C-c, or interrupt")
        if self._stub is None or self._stub.connection is not connection:
            self._stub = Stub(connection)
        state["stub"] = self._stub.kind
        state["cpu"] = self._stub.find_cpu(thread)
        return state

    @staticmethod
    def _find_offset() -> Optional[int]:
        word = str(gdb.parameter("kcov kaslr-offset") or "auto")
        return None if word == "auto" else int(word, 0)

    # Requests to the child.

    def ask(
        self,
        op: str,
        write: Optional[Write] = None,
        *,
        may_run: bool = False,
        may_type: bool = False,
        deliver: Optional[Deliver] = None,
        **fields: object,
    ) -> Fields:
        """Send a request to the child, serve the child until it has answered, and return the
        answer.

        Afterwards ``$_kcov_status`` is the exit status of the line that was run.

        :param write: called with ``out`` or ``err``, and a text.
        :param may_run: whether the child may let the machine run.
        :param may_type: whether the programs of a pipe get the terminal.
        :param deliver: if given, the machine runs in the background: an empty answer is returned,
            and deliver() is called with the answer when the machine has stopped.
        :raises gdb.GdbError: when the request failed, with the message for the user.
        :raises KeyboardInterrupt: after C-c.
        """
        if self._request is not None:
            raise gdb.GdbError("kcovdbg: another command runs")
        self._count += 1
        request = _Request(op, self._count, write, deliver, may_run=may_run, may_type=may_type)
        self._request = request
        try:
            child = self._send(request, fields)
        except BaseException:
            self._settle(request, _FAILED)
            raise
        return self._finish(child, request)

    def _send(self, request: _Request, fields: Fields) -> Child:
        """Send a request; return the child that has it."""
        child = self.start()
        child.greet()
        message = dict(fields, op=request.op, n=request.number)
        message.update(
            state=self.describe(), cwd=os.getcwd(), debug=bool(gdb.parameter("kcov debug"))
        )
        try:
            child.send(message)
        except KeyboardInterrupt:
            # The whole request was sent, and will be answered.
            child.interrupt()
            request.interrupted = time.monotonic()
        except LostError:
            raise self._lose() from None
        return child

    def _finish(self, child: Child, request: _Request) -> Fields:
        """Serve the child until it has answered a request; return the answer, empty while the
        machine runs in the background.
        """
        status = _FAILED
        is_over = True
        try:
            answer = self._receive(child, request)
            status = answer.get("status", 0)
        except _RunsInBackgroundError:
            is_over = False
            return {}
        except KeyboardInterrupt:
            status = _INTERRUPTED
            raise
        finally:
            if is_over:
                self._settle(request, status)
        if answer.get("error"):
            raise gdb.GdbError(answer["error"])
        return answer

    def _settle(self, request: _Request, status: int) -> None:
        """Be ready for the next request."""
        self._request = None
        if request.op == "run":
            gdb.set_convenience_variable("_kcov_status", status)

    def _receive(self, child: Child, request: _Request) -> Fields:
        try:
            return self._await(child, request, "done")
        except LostError:
            raise self._lose() from None
        finally:
            self._end_pipeline()

    def _await(self, child: Child, request: _Request, op: str) -> Fields:
        """Serve the child until it has answered a request; return the answer.

        :param op: of the answer.
        :raises LostError: when the child has ended.
        :raises KeyboardInterrupt: after C-c, once the child has answered.
        """
        try:
            while True:
                try:
                    message, _ = child.receive()
                    if message["op"] != op:
                        self._serve(child, message, is_interrupted=request.interrupted is not None)
                    elif message["n"] == request.number:
                        break
                    else:
                        child.release()
                except KeyboardInterrupt:
                    if request.interrupted is None:
                        request.interrupted = time.monotonic()
                        if request is self._request:
                            child.interrupt()
                    elif time.monotonic() - request.interrupted > _PATIENCE:
                        # The child is busy where its Python sees no signal, for instance in drgn.
                        self._end()
                        raise
        finally:
            self._restore()
        if request.interrupted is not None:
            raise KeyboardInterrupt
        return message

    def _lose(self) -> gdb.GdbError:
        """Forget a child that has ended; return the error for the user."""
        self._end()
        return gdb.GdbError("kcovdbg: its process has ended; the next command starts another")

    def _restore(self) -> None:
        """Restore the stub's mode of memory, also if C-c comes meanwhile."""
        for _ in range(3):
            try:
                if self._stub is not None and self._stub.connection.is_valid():
                    self._stub.restore()
                return
            except KeyboardInterrupt:
                continue
            except gdb.error:
                return

    def _write(self, op: str, text: str) -> None:
        if self._request is not None and self._request.write is not None:
            self._request.write(op, text)

    def _serve(self, child: Child, message: Fields, *, is_interrupted: bool) -> None:
        """Do what the child asks for, and answer in any case, because the child waits."""
        if message["op"] in ("out", "err"):
            child.release()
            if not is_interrupted:
                self._write(message["op"], message["text"])
            return
        data = b""
        interrupt = None
        if is_interrupted:
            answer: Fields = {"interrupted": True}
        else:
            try:
                answer, data = getattr(self, "_do_" + message["op"])(message)
            except KeyboardInterrupt as error:
                # GDB has finished the packet.
                answer, interrupt = {"interrupted": True}, error
            except gdb.error as error:
                answer = {"lost": "lost the machine: %s" % " ".join(str(error).split())}
        child.send(dict(answer, re=message["n"]), data)
        if interrupt is not None:
            raise interrupt

    def _end_pipeline(self) -> None:
        """End the programs of a pipe that still run after an error or C-c."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.end()

    # What the child can ask for: each returns the answer and its bytes.

    def _do_pipe(self, message: Fields) -> Tuple[Fields, bytes]:
        """Start the programs that read the answer."""
        is_interactive = self._request is not None and self._request.may_type
        try:
            self._pipeline = Pipeline(message["line"], is_interactive=is_interactive)
        except OSError as error:
            return {"error": error.strerror}, b""
        return {"error": None}, b""

    def _do_feed(self, message: Fields) -> Tuple[Fields, bytes]:
        """Give a part of the answer to the programs; say whether they want more."""
        return {"reads": self._pipeline is not None and self._pipeline.write(message["text"])}, b""

    def _do_finish(self, message: Fields) -> Tuple[Fields, bytes]:
        """Wait for the programs; return their status."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is None:
            return {"status": _FAILED}, b""
        try:
            status, output = pipeline.finish()
        except KeyboardInterrupt:
            pipeline.end()
            raise
        self._write("out", output)
        return {"status": status}, b""

    def _need_stub(self) -> Stub:
        if self._stub is None or not self._stub.connection.is_valid():
            raise gdb.error("GDB has left it")
        return self._stub

    def _do_read(self, message: Fields) -> Tuple[Fields, bytes]:
        data, error = self._need_stub().read(
            message["address"], message["size"], physical=message["physical"]
        )
        return {"error": error}, data

    def _do_physical(self, message: Fields) -> Tuple[Fields, bytes]:
        return {"can": self._need_stub().use_mode(_PHYSICAL)}, b""

    def _do_monitor(self, message: Fields) -> Tuple[Fields, bytes]:
        if message["command"] not in _MONITOR_COMMANDS:
            return {"text": None}, b""
        self._need_stub()
        try:
            # send_packet() returns the first of the packets that answer qRcmd.
            return {"text": gdb.execute("monitor " + message["command"], to_string=True)}, b""
        except gdb.error:
            return {"text": None}, b""

    def _do_registers(self, message: Fields) -> Tuple[Fields, bytes]:
        # To select a frame, GDB unwinds the stack; from physical memory it would get wrong frames,
        # and keep them.
        stub = self._need_stub()
        stub.use_mode(_VIRTUAL)
        number = message["thread"]
        selected = gdb.selected_thread()
        thread = selected if number is None else stub.find_thread(number)
        if number is None or (thread and selected and thread.num == selected.num):
            return {"values": _read_registers(message["names"])}, b""
        # While GDB decides whether to stop, no other thread can be selected.
        if thread is None or selected is None or self._watch is not None:
            return {"values": []}, b""
        frame = _find_frame()
        try:
            thread.switch()
            return {"values": _read_registers(message["names"])}, b""
        finally:
            selected.switch()
            if frame is not None and frame.is_valid():
                frame.select()

    def _do_watch(self, message: Fields) -> Tuple[Fields, bytes]:
        request = self._request
        if request is None or not request.may_run:
            error = "GDB lets the machine run for kcov-show catch only"
            return {"error": error, "hint": "continue"}, b""
        self._restore()
        spans = [tuple(span) for span in message["spans"]]
        self._watch = Watch(spans, message["seconds"], self._judge)
        deliver = request.deliver
        if deliver is None:
            try:
                return self._watch.run(), b""
            finally:
                self._watch = None

        def go_on(found: Fields) -> None:
            self._go_on(request, deliver, dict(found, re=message["n"]))

        problem = self._watch.start(go_on)
        if problem is None:
            raise _RunsInBackgroundError
        self._watch = None
        return problem, b""

    def _go_on(self, request: _Request, deliver: Deliver, answer: Fields) -> None:
        """Finish a request after the machine ran in the background.

        :param answer: tells the child how the run ended.
        """
        self._watch = None
        child = self._child
        assert child is not None
        try:
            child.send(answer)
            deliver(self._finish(child, request))
        except LostError:
            self._settle(request, _FAILED)
            write("err", "%s\n" % self._lose())
        except gdb.GdbError as error:
            write("err", "%s\n" % error)

    def _do_symbol(self, message: Fields) -> Tuple[Fields, bytes]:
        """Return the name of GDB's symbol at an address: GDB finds it without debug info."""
        text = gdb.execute("info symbol %#x" % message["address"], to_string=True)
        return {"name": text.split()[0] if " in section " in text else None}, b""

    def _do_address(self, message: Fields) -> Tuple[Fields, bytes]:
        """Return the address of one of GDB's static symbols, None if GDB does not know it."""
        try:
            symbol = gdb.lookup_static_symbol(message["name"])
            address = None if symbol is None else symbol.value().address
        except gdb.error:
            address = None
        return {"address": None if address is None else int(address) & (1 << 64) - 1}, b""

    def _judge(self) -> bool:
        """Return whether the child wants the write that stopped the machine.

        :raises KeyboardInterrupt: after C-c, once the child has given its verdict.
        """
        child, stub, thread = self._child, self._need_stub(), gdb.selected_thread()
        assert child is not None
        self._count += 1
        request = _Request("judge", self._count)
        cpu = None if thread is None else stub.find_cpu(thread)
        child.send({"op": request.op, "n": request.number, "cpu": cpu})
        return bool(self._await(child, request, "verdict")["wanted"])


def _find_source_folders() -> List[str]:
    """Return the folders of GDB's ``directory``, without ``$cdir`` and ``$cwd``."""
    folders = str(gdb.parameter("directories") or "").split(":")
    return [folder for folder in folders if os.path.isabs(folder)]


def _find_substitutions() -> List[Tuple[str, str]]:
    """Return the rules of ``set substitute-path``; GDB has no call for them but ``show``."""
    text = gdb.execute("show substitute-path", to_string=True)
    starts = ("  `", "  '")
    found = []
    for line in text.splitlines():
        # "  `FROM' -> `TO'."
        before, _, after = line.partition("' -> ")
        if before.startswith(starts) and after[:1] in ("`", "'") and after.endswith("'."):
            found.append((before[3:], after[1:-2]))
    return found


def _refuse(state: Fields, problem: str, hint: str) -> Fields:
    return dict(state, problem=problem, hint=hint)


def _find_frame() -> Optional[gdb.Frame]:
    try:
        return gdb.selected_frame()
    except gdb.error:
        return None


def _read_registers(names: List[str]) -> List[Optional[int]]:
    """Return registers of the selected thread's innermost frame, None for an unknown one."""
    found: List[Optional[int]] = []
    frame = gdb.newest_frame()
    for name in names:
        try:
            value = frame.read_register(name)
            found.append(int(value) & (1 << 8 * value.type.sizeof) - 1)
        except (gdb.error, ValueError):
            found.append(None)
    return found


def _find_core(inferior: Any) -> Optional[str]:
    """Return the path of the core that GDB reads."""
    # Only GDB 18 and later tells Python; before, "info files" has the name.
    name: Optional[str] = getattr(getattr(inferior, "corefile", None), "filename", None)
    if name is not None:
        return name
    text = gdb.execute("info files", to_string=True)
    match = re.search(r"^Local core dump file:\s+[`'](.*)', file type ", text, re.MULTILINE)
    if match is not None:
        return match[1]
    # GDB may speak another language than English. A line that names a file ends with the file's
    # type, and the line of the core comes after the program's.
    for line in text.split("\n"):
        named = re.match(r"\s+[`'«\"](.*)['»\"],", line)
        if named is not None and re.search(r"\belf\d\d-", line[named.end() :]):
            name = named[1]
    return name
