# SPDX-License-Identifier: LGPL-2.1-or-later
"""Carriers of a handle besides tasks, on kernels in memory with each layout, and with damage."""

import pytest

from kcovdbg.model.remote import SKB, VHOST
from kcovdbg.model.state import Part, Source
from tests.support.kernels.build import Kernel
from tests.support.kernels.declare import Declarations
from tests.support.kernels.rows import E6, E8, E9A

HANDLE = 0x42
NETWORK = """
struct sk_buff { struct sk_buff *next; struct sk_buff *prev; char cb[48]; u64 kcov_handle; };
struct sk_buff_head { struct sk_buff *next; struct sk_buff *prev; u32 qlen; };
struct sock { u64 flags; struct sk_buff_head sk_error_queue; struct sk_buff_head sk_receive_queue;
  struct sk_buff_head sk_write_queue; };
struct socket { int state; struct file *file; struct sock *sk; };
struct softnet_data { u64 poll; struct sk_buff_head process_queue; struct sk_buff_head input_pkt_queue; };
"""
DEVICES = {
    "since v6.5": """
struct vhost_task { u64 fn; struct task_struct *task; };
struct vhost_worker { struct vhost_task *vtsk; u64 kcov_handle; u32 id; };
struct vhost_virtqueue { struct vhost_dev *dev; struct vhost_worker *worker; };
struct vhost_dev { struct mm_struct *mm; struct vhost_virtqueue **vqs; int nvqs; };
""",
    "since v6.4": """
struct vhost_task { u64 fn; struct task_struct *task; };
struct vhost_worker { struct vhost_task *vtsk; u64 kcov_handle; };
struct vhost_virtqueue { struct vhost_dev *dev; };
struct vhost_dev { struct mm_struct *mm; struct vhost_virtqueue **vqs; int nvqs; struct vhost_worker worker; };
""",
    "since v5.5": """
struct vhost_virtqueue { struct vhost_dev *dev; };
struct vhost_dev { struct mm_struct *mm; struct vhost_virtqueue **vqs; int nvqs; struct task_struct *worker; u64 kcov_handle; };
""",
}


class Carriers:
    """A kernel with types that KCOV's own walk doesn't need."""

    def __init__(self, row=E9A, declared=NETWORK):
        self.kernel = Kernel(row)
        self.target = self.kernel.target
        # Those of the kernel itself are already there.
        known = Declarations()
        known.types, known._alignments = (
            dict(self.target.types),
            dict.fromkeys(self.target.types, 8),
        )
        self.target.types.update(known.declare(declared).types)

    def put(self, type_name, **values):
        address = self.kernel.allocate_type(type_name)
        self.target.put(
            address, type_name, {name.replace("__", "."): value for name, value in values.items()}
        )
        return address

    def open(self, symbol, private, table="fuzz", fd=100):
        """Make a descriptor lead to a file with these operations."""
        if symbol not in self.target.symbols:
            self.kernel.add_symbol(symbol, 256)
        file = self.put(
            "struct file", f_op=self.target.symbols[symbol].address, private_data=private
        )
        fdt = self.kernel.tables[table] + self.kernel.offset("struct files_struct", "fdtab")
        array = self.kernel.read_word(fdt + self.kernel.offset("struct fdtable", "fd"))
        self.kernel.write_word(array + 8 * fd, file)

    def queue(self, head, handles):
        packets = [self.put("struct sk_buff", kcov_handle=handle) for handle in handles]
        self.kernel.link(head, packets)
        return packets

    def walk(self):
        state = self.kernel.reader().read(Part.CARRIERS)
        return list(state.carriers), list(state.lacks(Source.CARRIERS))


def make_socket(carriers):
    sock = carriers.put("struct sock")
    heads = {
        name: sock + carriers.kernel.offset("struct sock", f"sk_{name}_queue")
        for name in ("receive", "write", "error")
    }
    for head in heads.values():
        carriers.kernel.link(head, [])
    carriers.open("socket_file_ops", carriers.put("struct socket", sk=sock))
    return heads


def test_packets_of_sockets():
    carriers = Carriers()
    heads = make_socket(carriers)
    received = carriers.queue(heads["receive"], [HANDLE, 0, HANDLE])
    (sent,) = carriers.queue(heads["write"], [0x77])
    found, remarks = carriers.walk()
    assert list(remarks) == []
    assert {carrier.kind for carrier in found} == {SKB}
    assert [(carrier.address, carrier.handle, carrier.place) for carrier in found] == [
        (received[0], HANDLE, "the receive queue of descriptor 40/100"),
        (received[2], HANDLE, "the receive queue of descriptor 40/100"),
        (sent, 0x77, "the write queue of descriptor 40/100"),
    ]


def test_packets_of_cpus():
    carriers = Carriers()
    per_cpu = carriers.target.per_cpu_addresses["softnet_data"] = {}
    for cpu in carriers.target.cpu_numbers:
        per_cpu[cpu] = carriers.put("struct softnet_data")
        for name in ("input_pkt_queue", "process_queue"):
            carriers.kernel.link(
                per_cpu[cpu] + carriers.kernel.offset("struct softnet_data", name), []
            )
    carriers.queue(
        per_cpu[1] + carriers.kernel.offset("struct softnet_data", "input_pkt_queue"), [HANDLE]
    )
    found, remarks = carriers.walk()
    assert ([carrier.place for carrier in found], list(remarks)) == (
        ["input_pkt_queue of CPU 1"],
        [],
    )


def test_a_queue_that_doesnt_end():
    carriers = Carriers()
    heads = make_socket(carriers)
    packets = carriers.queue(heads["receive"], [HANDLE, HANDLE])
    carriers.kernel.write_word(packets[1], packets[0])
    carriers.queue(heads["write"], [HANDLE])
    found, remarks = carriers.walk()
    assert len(found) == 3
    assert len(remarks) == 1
    assert "the receive queue of descriptor 40/100: " in remarks[0]


@pytest.mark.parametrize("bad", [0x1234, 0xFFFF88800DEAD000])
def test_a_socket_that_cant_be_read(bad):
    carriers = Carriers()
    carriers.open("socket_file_ops", bad)
    found, remarks = carriers.walk()
    assert found == []
    assert "descriptor 40/100" in remarks[0]


def test_a_kernel_whose_packets_carry_nothing():
    """Up to v5.10, and kernels whose debug info lacks it: no remark, as nothing is wrong."""
    carriers = Carriers(E6, NETWORK.replace("u64 kcov_handle;", ""))
    make_socket(carriers)
    assert carriers.walk() == ([], [])


@pytest.mark.parametrize("shape", DEVICES)
def test_vhost_workers(shape):
    row = {"since v6.5": E9A, "since v6.4": E8, "since v5.5": E6}[shape]
    carriers = Carriers(row, DEVICES[shape] + "struct vhost_net { struct vhost_dev dev; u64 tx; };")
    worker_task = carriers.kernel.tasks[45]
    device = carriers.kernel.allocate_type("struct vhost_net")
    expected, pid = device, None
    if shape == "since v6.5":
        vtsk = carriers.put("struct vhost_task", task=worker_task)
        worker = carriers.put("struct vhost_worker", kcov_handle=HANDLE, vtsk=vtsk)
        # Two queues share the worker, the third has none.
        queues = [
            carriers.put("struct vhost_virtqueue", worker=each) for each in (worker, worker, 0)
        ]
        array = carriers.kernel.allocate(24)
        for index, queue in enumerate(queues):
            carriers.kernel.write_word(array + 8 * index, queue)
        carriers.target.put(device, "struct vhost_net", {"dev.vqs": array, "dev.nvqs": 3})
        expected, pid = worker, 45
    elif shape == "since v6.4":
        carriers.target.put(device, "struct vhost_net", {"dev.worker.kcov_handle": HANDLE})
    else:
        carriers.target.put(
            device, "struct vhost_net", {"dev.worker": worker_task, "dev.kcov_handle": HANDLE}
        )
        pid = 45
    carriers.open("vhost_net_fops", device)
    found, remarks = carriers.walk()
    assert list(remarks) == []
    assert [tuple(carrier) for carrier in found] == [
        (VHOST, expected, HANDLE, "vhost_net of descriptor 40/100", pid),
    ]


def test_a_vhost_device_of_garbage():
    carriers = Carriers(E9A, DEVICES["since v6.5"] + "struct vhost_net { struct vhost_dev dev; };")
    device = carriers.put(
        "struct vhost_net", dev__vqs=carriers.kernel.allocate(64), dev__nvqs=1 << 30
    )
    carriers.open("vhost_net_fops", device)
    found, remarks = carriers.walk()
    assert found == []
    assert "nvqs" in remarks[0]


def test_a_vhost_device_whose_types_are_unknown():
    carriers = Carriers(E9A, "struct nothing { int i; };")
    carriers.open("vhost_vsock_fops", carriers.kernel.allocate(64))
    found, remarks = carriers.walk()
    assert found == []
    assert "struct vhost_vsock" in remarks[0]


def test_nothing_of_all_that():
    """A kernel without vhost and sockets has no carriers, and there is no remark."""
    assert Carriers(E9A, "struct nothing { int i; };").walk() == ([], [])
