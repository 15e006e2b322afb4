# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lends what GDB has open to the process: its memory, its registers, and the monitor of its stub.

Only this file sends packets, and it leaves the stub and GDB as they were: the mode of memory, the
selected thread and frame.
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
# What the process may ask a monitor: nothing that changes the machine.
_MONITOR = ("info registers", "info mtree -f", "info version", "info status")
_PHYSICAL, _VIRTUAL = b"1", b"0"
_PAGE = 4096
# kgdb's buffer has 1024 characters on x86 (BUFMAX), two for each byte, and it does not check that
# an answer fits.
_KGDB_PIECE = 504
# GDB takes this for the packets of a stub that names no size.
_OTHER_PIECE = 156
# kgdb numbers CPUs from -2 downwards.
_KGDB_CPU = 0xFFFF_FFFE
_THREAD_MASK = 0xFFFF_FFFF

# The statuses of kcovdbg itself.
_FAILED, _INTERRUPTED = 2, 130
# Seconds after which another C-c ends the process. One C-c may raise twice: in Python, and in the
# next call of GDB.
_PATIENCE = 1.0

Write = Callable[[str, str], None]
Deliver = Callable[["Fields"], None]


class _RunsInBackgroundError(Exception):
    """The machine runs in the background: the request is answered when it has stopped."""


class Stub:
    """A stub that GDB is connected to.

    :param connection: GDB's connection.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._before: Optional[bytes] = None
        self._mode: Optional[bytes] = None
        if self.send("qqemu.sstepbits"):
            self.kind = "qemu"
            # GDB has asked this before; the second answer changes nothing between GDB and the stub.
            answer = self.send("qSupported:multiprocess+;hwbreak+")
            found = re.search(rb"PacketSize=([0-9a-f]+)", answer)
            size = int(found[1], 16) if found is not None else 0
            self._piece = max((size - 4) // 2, _OTHER_PIECE)
            if size and size % _PAGE == 0:
                # QEMU reads exactly half of its packet size: a page takes two packets, not three.
                self._piece = size // 2
            if self.send("qqemu.PhyMemMode") == _PHYSICAL:
                # It outlasts the connection of a debugger that ended in the middle.
                self.send("Qqemu.PhyMemMode:0")
                write(
                    "err",
                    "kcovdbg: QEMU's stub read physical memory, as another debugger left it; "
                    "now it reads virtual memory\n",
                )
        # kgdb's name of its thread -2 (kernel/debug/gdbstub.c).
        elif self.send("qThreadExtraInfo,fffffffe") == b"shadowCPU0".hex().encode():
            self.kind, self._piece = "kgdb", _KGDB_PIECE
        else:
            self.kind, self._piece = "other", _OTHER_PIECE

    def send(self, packet: str) -> bytes:
        """Send a packet and return its answer, empty where the stub does not know it."""
        answer: Optional[bytes] = self.connection.send_packet(packet)
        return answer or b""

    def use_mode(self, mode: bytes) -> bool:
        """Make reads physical or virtual, until :meth:`restore`; return whether the stub can."""
        if self.kind != "qemu":
            return mode == _VIRTUAL
        if self._mode is None:
            self._before = self._mode = self.send("qqemu.PhyMemMode")
        if self._mode not in (_PHYSICAL, _VIRTUAL):
            return mode == _VIRTUAL
        if self._mode != mode:
            # Unknown until it is answered: C-c may come in between.
            self._mode = b"?"
            if self.send("Qqemu.PhyMemMode:" + mode.decode()) != b"OK":
                self._mode = self._before
                return False
            self._mode = mode
        return True

    def restore(self) -> None:
        """Leave the mode as it was. After C-c in the middle, it can be called again."""
        before = self._before or b""
        if before in (_PHYSICAL, _VIRTUAL) and self._mode != before:
            self.send("Qqemu.PhyMemMode:" + before.decode())
        self._before = self._mode = None

    def read(self, address: int, size: int, *, physical: bool) -> Tuple[bytes, Optional[str]]:
        """Return memory, or as much as can be read, and why that is not all."""
        data = bytearray()
        if not self.use_mode(_PHYSICAL if physical else _VIRTUAL):
            return b"", "no physical memory"
        while len(data) < size:
            count = min(size - len(data), self._piece)
            answer = self.send("m%x,%x" % (address + len(data), count))
            if len(answer) != 2 * count:
                return bytes(data), answer[:20].decode("ascii", "replace") or "no answer"
            data += bytes.fromhex(answer.decode())
        return bytes(data), None

    def find_thread(self, number: int) -> Optional[gdb.InferiorThread]:
        """Return the thread of a CPU.

        :param number: of the CPU, from 1.
        """
        wanted = number if self.kind != "kgdb" else _KGDB_CPU - (number - 1)
        threads = gdb.selected_inferior().threads()
        return next((thread for thread in threads if thread.ptid[1] & _THREAD_MASK == wanted), None)

    def number_of(self, thread: gdb.InferiorThread) -> int:
        """Return the number of a thread's CPU, from 0."""
        number = thread.ptid[1] & _THREAD_MASK
        return number - 1 if self.kind != "kgdb" else _KGDB_CPU - number


class Lender:
    """The process, and what it is lent."""

    def __init__(self) -> None:
        self._child: Optional[Child] = None
        self._generation = 0
        self._count = 0
        # The number of the current request.
        self._request = 0
        self._stub: Optional[Stub] = None
        self._core: Optional[Tuple[Any, Optional[str]]] = None
        self._watch: Optional[Watch] = None
        self._pipeline: Optional[Pipeline] = None
        self._write: Optional[Write] = None
        self._deliver: Optional[Deliver] = None
        self._is_busy = False
        self._may_run = False
        self._may_type = False
        # When C-c came during the request.
        self._interrupted: Optional[float] = None
        for name in _EVENTS:
            registry = getattr(gdb.events, name, None)
            if registry is not None:
                registry.connect(self._note)
        atexit.register(self._end)

    def _note(self, event: object) -> None:
        self._generation += 1

    def start(self) -> Child:
        """Return the process, started where there is none; it may not serve yet.

        :raises gdb.GdbError: when it cannot be started.
        """
        if self._child is None or not self._child.is_alive():
            self._end()
            self._child = Child()
        return self._child

    def greet(self, patience: float) -> None:
        """Wait until the process serves.

        :param patience: in seconds.
        :raises gdb.GdbError: when it cannot be used, or does not serve in time.
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
            # As in the condition of a breakpoint, where GDB has frames, and no event says that the
            # machine has moved since.
            state["moves"] = True
            try:
                gdb.selected_frame()
            except gdb.error:
                return _refuse(state, "the target is running", "stop it first: C-c, or interrupt")
        if self._stub is None or self._stub.connection is not connection:
            self._stub = Stub(connection)
        state["stub"] = self._stub.kind
        state["cpu"] = self._stub.number_of(thread)
        return state

    @staticmethod
    def _find_offset() -> Optional[int]:
        word = str(gdb.parameter("kcov kaslr-offset") or "auto")
        return None if word == "auto" else int(word, 0)

    # Requests to the process.

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
        """Send a request to the process, serve it until it has answered, and return that.

        The exit status of a line is in ``$_kcov_status`` afterwards.

        :param write: takes ``out`` or ``err`` and a text.
        :param may_run: whether GDB lets the machine run when it asks for that.
        :param may_type: whether the programs of a pipe get the terminal.
        :param deliver: makes the machine run in the background, and takes the answer when it has
            stopped; the answer that is returned is then empty.
        :raises gdb.GdbError: when the request failed, with the message for the user.
        :raises KeyboardInterrupt: after C-c.
        """
        if self._is_busy:
            raise gdb.GdbError("kcovdbg: another command runs")
        self._is_busy, self._may_run, self._may_type = True, may_run, may_type
        self._write, self._deliver = write, deliver
        try:
            child, number = self._send(op, fields)
        except BaseException:
            self._settle(op, _FAILED)
            raise
        return self._finish(op, child, number)

    def _finish(self, op: str, child: Child, number: int) -> Fields:
        """Serve a request until it is answered; return the answer, empty while the machine runs in
        the background.
        """
        status = _FAILED
        is_over = True
        try:
            answer = self._receive(child, number)
            status = answer.get("status", 0)
        except _RunsInBackgroundError:
            is_over = False
            return {}
        except KeyboardInterrupt:
            status = _INTERRUPTED
            raise
        finally:
            if is_over:
                self._settle(op, status)
        if answer.get("error"):
            raise gdb.GdbError(answer["error"])
        return answer

    def _settle(self, op: str, status: int) -> None:
        """Be ready for the next request."""
        self._is_busy = self._may_run = self._may_type = False
        self._write = self._deliver = None
        if op == "run":
            gdb.set_convenience_variable("_kcov_status", status)

    def _send(self, op: str, fields: Fields) -> Tuple[Child, int]:
        """Send a request; return the process that has it, and its number."""
        child = self.start()
        child.greet()
        self._count += 1
        # Judging writes meanwhile takes further numbers.
        number = self._request = self._count
        request = dict(fields, op=op, n=number, state=self.describe(), cwd=os.getcwd())
        request["debug"] = bool(gdb.parameter("kcov debug"))
        try:
            child.send(request)
        except KeyboardInterrupt:
            # The request is sent whole, and will be answered.
            child.interrupt()
            self._interrupted = time.monotonic()
        except LostError:
            raise self._lose() from None
        else:
            self._interrupted = None
        return child, number

    def _receive(self, child: Child, number: int) -> Fields:
        try:
            while True:
                try:
                    message, _ = child.receive()
                    if message["op"] == "done":
                        if message["n"] == number:
                            break
                        child.release()
                        continue
                    self._serve(child, message, self._interrupted is not None)
                except KeyboardInterrupt:
                    if self._interrupted is None:
                        self._interrupted = time.monotonic()
                        child.interrupt()
                    elif time.monotonic() - self._interrupted > _PATIENCE:
                        # It is busy where its Python does not look, in drgn for instance.
                        self._end()
                        raise
        except LostError:
            raise self._lose() from None
        finally:
            self._restore()
            self._end_pipeline()
        if self._interrupted is not None:
            raise KeyboardInterrupt
        return message

    def _lose(self) -> gdb.GdbError:
        self._end()
        return gdb.GdbError("kcovdbg: its process has ended; the next command starts another")

    def _restore(self) -> None:
        """Leave the stub as it was, also when C-c comes meanwhile."""
        for _ in range(3):
            try:
                if self._stub is not None and self._stub.connection.is_valid():
                    self._stub.restore()
                return
            except KeyboardInterrupt:
                continue
            except gdb.error:
                return

    def _serve(self, child: Child, message: Fields, is_interrupted: bool) -> None:
        """Do what the process asks for, and answer whatever happens: it waits for the answer."""
        if message["op"] in ("out", "err"):
            child.release()
            if self._write is not None and not is_interrupted:
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
        """End the programs of a pipe that are still there, after an error or C-c."""
        pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.end()

    # Requests of the process.

    def _do_pipe(self, message: Fields) -> Tuple[Fields, bytes]:
        """Start the programs that read the answer."""
        try:
            self._pipeline = Pipeline(message["line"], is_interactive=self._may_type)
        except OSError as error:
            return {"error": error.strerror}, b""
        return {"error": None}, b""

    def _do_feed(self, message: Fields) -> Tuple[Fields, bytes]:
        """Give a part of the answer to the programs; tell whether they read on."""
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
        if self._write is not None:
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
        if message["command"] not in _MONITOR:
            return {"text": None}, b""
        self._need_stub()
        try:
            # send_packet() returns the first of the packets that answer qRcmd.
            return {"text": gdb.execute("monitor " + message["command"], to_string=True)}, b""
        except gdb.error:
            return {"text": None}, b""

    def _do_registers(self, message: Fields) -> Tuple[Fields, bytes]:
        # GDB unwinds again to select the frame: of physical memory it would make, and keep, wrong
        # frames.
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
        if not self._may_run:
            error = "GDB lets the machine run for kcov-show catch only"
            return {"error": error, "hint": "continue"}, b""
        self._restore()
        spans = [tuple(span) for span in message["spans"]]
        self._watch = Watch(spans, message["seconds"], self._judge)
        deliver = self._deliver
        if deliver is not None:
            problem = self._watch.start(lambda found: self._go_on(message["n"], found, deliver))
            if problem is None:
                raise _RunsInBackgroundError
            self._watch = None
            return problem, b""
        try:
            return self._watch.run(), b""
        finally:
            self._watch = None

    def _go_on(self, number: int, found: Fields, deliver: Deliver) -> None:
        """Go on with the request that let the machine run in the background.

        :param number: of the process's request to let it run.
        """
        self._watch = None
        child = self._child
        assert child is not None
        try:
            child.send(dict(found, re=number))
            deliver(self._finish("run", child, self._request))
        except LostError:
            self._settle("run", _FAILED)
            write("err", "%s\n" % self._lose())
        except gdb.GdbError as error:
            write("err", "%s\n" % error)

    def _do_symbol(self, message: Fields) -> Tuple[Fields, bytes]:
        """Return the name of GDB's symbol at an address; GDB has these at hand, and reads no debug
        info.
        """
        text = gdb.execute("info symbol %#x" % message["address"], to_string=True)
        return {"name": text.split()[0] if " in section " in text else None}, b""

    def _do_address(self, message: Fields) -> Tuple[Fields, bytes]:
        """Return the address of one of GDB's static symbols, None where it has none."""
        try:
            symbol = gdb.lookup_static_symbol(message["name"])
            address = None if symbol is None else symbol.value().address
        except gdb.error:
            address = None
        return {"address": None if address is None else int(address) & (1 << 64) - 1}, b""

    def _judge(self) -> bool:
        """Return whether the process wants the write that stopped the machine."""
        child, stub, thread = self._child, self._need_stub(), gdb.selected_thread()
        assert child is not None
        self._count += 1
        count = self._count
        cpu = None if thread is None else stub.number_of(thread)
        child.send({"op": "judge", "n": count, "cpu": cpu})
        interrupt = None
        interrupted = 0.0
        try:
            while True:
                try:
                    message, _ = child.receive()
                    if message["op"] != "verdict":
                        self._serve(child, message, interrupt is not None)
                    elif message["n"] == count:
                        break
                    else:
                        child.release()
                except KeyboardInterrupt as error:
                    # The process gives its verdict first.
                    if interrupt is None:
                        interrupt, interrupted = error, time.monotonic()
                    elif time.monotonic() - interrupted > _PATIENCE:
                        self._end()
                        raise LostError from None
        finally:
            self._restore()
        if interrupt is not None:
            raise interrupt
        return bool(message["wanted"])


def _find_source_folders() -> List[str]:
    """Return the folders of ``directory``, without those that only GDB's own look-up knows."""
    folders = str(gdb.parameter("directories") or "").split(":")
    return [folder for folder in folders if os.path.isabs(folder)]


def _find_substitutions() -> List[Tuple[str, str]]:
    """Return the rules of ``set substitute-path``, which GDB has no other call for."""
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
    """Return registers of the selected thread's innermost frame, None for those that GDB does not
    know.
    """
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
    # Python can ask GDB 18 and later; of older ones, "info files" has the name.
    name: Optional[str] = getattr(getattr(inferior, "corefile", None), "filename", None)
    if name is None:
        text = gdb.execute("info files", to_string=True)
        match = re.search(r"^Local core dump file:\s+[`'](.*)', file type ", text, re.MULTILINE)
        if match is not None:
            return match[1]
        # In other languages than English the line is found by its end. The program's line comes
        # first.
        for line in text.split("\n"):
            named = re.match(r"\s+[`'«\"](.*)['»\"],", line)
            if named is not None and re.search(r"\belf\d\d-", line[named.end() :]):
                name = named[1]
    return name
