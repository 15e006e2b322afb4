# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the carriers of a common handle besides tasks: vhost workers and queued packets.

The search follows descriptors and each CPU's backlog. Carriers that only a driver refers to are not
found: the list may be incomplete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kcovdbg.errors import KcovdbgError, MissingError, MissingTypeError, ReadError
from kcovdbg.model.remote import SKB, VHOST, Carrier
from kcovdbg.model.task import TaskFields
from kcovdbg.target.pointer import (
    Remarks,
    check_pointer,
    follow_chain,
    is_kernel_pointer,
    read_pointer,
    read_word,
)
from kcovdbg.target.struct_layout import find_kernel_symbol, find_member
from kcovdbg.target.target import Member, Target
from kcovdbg.walk.files import FileWalk

# A socket's buffer limits its queue: a longer list is damaged.
_MAX_PACKETS: Final = 1 << 16
_MAX_QUEUES: Final = 1 << 10
_SOCKET_QUEUES: Final = (
    ("sk_receive_queue", "receive"),
    ("sk_write_queue", "write"),
    ("sk_error_queue", "error"),
)
_CPU_QUEUES: Final = ("input_pkt_queue", "process_queue")
# For each file_operations of a vhost device, the type of private_data and its struct vhost_dev.
_VHOST_FILES: Final = (
    ("vhost_net_fops", "struct vhost_net", "dev"),
    ("vhost_vsock_fops", "struct vhost_vsock", "dev"),
    ("vhost_scsi_fops", "struct vhost_scsi", "dev"),
    ("vhost_vdpa_fops", "struct vhost_vdpa", "vdev"),
)


class CarrierWalk:
    """Finds the carriers in one look at a kernel."""

    def __init__(self, target: Target, tasks: Iterable[TaskFields]) -> None:
        self._target = target
        self._tasks = tuple(tasks)
        self._files = FileWalk(target)
        self.remarks = Remarks()

    def __iter__(self) -> Iterator[Carrier]:
        """Yield each carrier of a handle other than 0."""
        seen: set[int] = set()
        for found in (*self._for_each_worker(), *self._for_each_packet()):
            if found.handle and found.address not in seen:
                seen.add(found.address)
                yield found

    def _number(self, address: int, member: Member) -> int:
        return read_word(self._target, address + member.offset, member.size)

    def _pointer(self, address: int, type_name: str, path: str) -> int:
        return read_pointer(self._target, address + self._target.member(type_name, path).offset)

    def _open_files(self, operations: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """Yield the open files with some ``file_operations``: the symbol of these, the descriptor,
        and ``private_data``.
        """
        names: dict[int, str] = {}
        for name in operations:
            symbol = find_kernel_symbol(self._target, name)
            # A driver without the symbol is not built in, and its module is not loaded.
            if symbol is not None:
                names[symbol.address] = name
        if names:
            for found, descriptor, private in self._files.for_each_file(self._tasks, names.keys()):
                yield names[found], descriptor, private

    # vhost.

    def _for_each_worker(self) -> Iterator[Carrier]:
        kinds = {name: (type_name, member) for name, type_name, member in _VHOST_FILES}
        for name, descriptor, private in self._open_files(kinds):
            type_name, member = kinds[name]
            place = f"{type_name.removeprefix('struct ')} of descriptor {descriptor}"
            try:
                device = private + self._target.member(type_name, member).offset
                yield from self._workers_of(device, place)
            except MissingTypeError as error:
                self.remarks.note(f"{place}: its workers could not be found: {error}")
            except ReadError as error:
                self.remarks.note(f"{place}: {error}")

    def _workers_of(self, device: int, place: str) -> Iterator[Carrier]:
        target = self._target
        check_pointer(target, device, "struct vhost_dev")
        # Linux kernel commit "vhost: add vhost_worker pointer to vhost_virtqueue" (in v6.5).
        if find_member(target, "struct vhost_virtqueue", ("worker",)) is not None:
            yield from self._workers_of_queues(device, place)
            return
        # Linux kernel commit "vhost: move worker thread fields to new struct" (in v6.4).
        moved = find_member(target, "struct vhost_dev", ("worker.kcov_handle",))
        if moved is not None:
            yield Carrier(VHOST, device, self._number(device, moved), place)
            return
        # Linux kernel commit "vhost, kcov: collect coverage from vhost_worker" (in v5.5).
        old = target.member("struct vhost_dev", "kcov_handle")
        pid = self._pid_of(self._pointer(device, "struct vhost_dev", "worker"))
        yield Carrier(VHOST, device, self._number(device, old), place, pid)

    def _pid_of(self, task: int) -> int | None:
        if not is_kernel_pointer(self._target, task):
            return None
        return self._number(task, self._target.member("struct task_struct", "pid"))

    def _workers_of_queues(self, device: int, place: str) -> Iterator[Carrier]:
        target = self._target
        handle = target.member("struct vhost_worker", "kcov_handle")
        queues = self._pointer(device, "struct vhost_dev", "vqs")
        count = self._number(device, target.member("struct vhost_dev", "nvqs"))
        check_pointer(target, queues, "vhost_dev.vqs")
        if not 0 < count <= _MAX_QUEUES:
            raise ReadError(f"nvqs of struct vhost_dev at {device:#x} is {count}", device)
        for index in range(count):
            queue = read_pointer(target, queues + index * target.word_size)
            check_pointer(target, queue, "struct vhost_virtqueue")
            worker = self._pointer(queue, "struct vhost_virtqueue", "worker")
            if worker:
                check_pointer(target, worker, "struct vhost_worker")
                number, pid = self._number(worker, handle), self._worker_pid(worker)
                yield Carrier(VHOST, worker, number, place, pid)

    def _worker_pid(self, worker: int) -> int | None:
        """Return the thread of a worker: since v6.4 a vhost_task; on kernels that offer both kinds,
        it may be a kernel thread.
        """
        target = self._target
        try:
            task = 0
            if find_member(target, "struct vhost_worker", ("kthread_task",)) is not None:
                task = self._pointer(worker, "struct vhost_worker", "kthread_task")
            user = self._pointer(worker, "struct vhost_worker", "vtsk")
            if not task and user and is_kernel_pointer(target, user):
                task = self._pointer(user, "struct vhost_task", "task")
            return self._pid_of(task)
        except KcovdbgError:
            return None

    # Packets.

    def _for_each_packet(self) -> Iterator[Carrier]:
        target = self._target
        try:
            # Linux kernel commit "net: switch to storing KCOV handle directly in sk_buff" (in
            # v5.11).
            handle = target.member("struct sk_buff", "kcov_handle")
            following = target.member("struct sk_buff", "next")
        except MissingTypeError:
            return
        for head, place in (*self._socket_queues(), *self._cpu_queues()):

            def read_packet(packet: int, before: int, place: str = place) -> tuple[Carrier, int]:
                del before
                check_pointer(target, packet, "struct sk_buff")
                carrier = Carrier(SKB, packet, self._number(packet, handle), place)
                return carrier, read_pointer(target, packet + following.offset)

            try:
                # A struct sk_buff_head has the first members of a struct sk_buff. A head without a
                # link was never initialized.
                first = read_pointer(target, head + following.offset) or head
                problem = yield from follow_chain(first, head, read_packet, _MAX_PACKETS)
            except ReadError as error:
                problem = str(error)
            if problem is not None:
                self.remarks.note(f"{place}: {problem}")

    def _socket_queues(self) -> Iterator[tuple[int, str]]:
        target = self._target
        for _, descriptor, socket in self._open_files(("socket_file_ops",)):
            try:
                check_pointer(target, socket, "struct socket")
                sock = self._pointer(socket, "struct socket", "sk")
                if not sock:
                    continue
                check_pointer(target, sock, "struct sock")
                for member, kind in _SOCKET_QUEUES:
                    head = sock + target.member("struct sock", member).offset
                    yield head, f"the {kind} queue of descriptor {descriptor}"
            except (ReadError, MissingTypeError) as error:
                self.remarks.note(f"the queues of descriptor {descriptor}: {error}")

    def _cpu_queues(self) -> Iterator[tuple[int, str]]:
        target = self._target
        for cpu in target.cpus():
            for name in _CPU_QUEUES:
                try:
                    offset = target.member("struct softnet_data", name).offset
                    head = target.per_cpu("softnet_data", cpu) + offset
                except (MissingError, ReadError):
                    continue
                yield head, f"{name} of CPU {cpu}"
