// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A vhost device with one packet in its ring at a time. Its worker runs every piece of work inside
 * a remote section with the common handle of the task that made it. No other user of common handles in the kernel is as easy
 * to set up.
 */
#include "lab.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/kcov.h>
#include <linux/userfaultfd.h>
#include <linux/vhost.h>
#include <linux/virtio_ring.h>
#include <linux/virtio_vsock.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RING 8
#define QUEUE_BYTES (2 * PAGE)
#define AVAIL_AT 512
#define USED_AT 1024
#define DATA_AT 2048

/*
 * The header that vhost-net expects before a frame without VIRTIO_F_VERSION_1 and mergeable
 * buffers.
 */
#define NET_HEADER 10

static int fail(struct vhost *v, const char *what)
{
	if (!v->why[0])
		snprintf(v->why, sizeof(v->why), "%s: %s", what, strerror(errno));
	return -1;
}

static unsigned char *queue(struct vhost *v, int i)
{
	return v->mem + i * QUEUE_BYTES;
}

static int set_queue(struct vhost *v, int i)
{
	struct vhost_vring_state num = { i, RING }, base = { i, 0 };
	struct vhost_vring_file kick = { i, v->kick[i] };
	uintptr_t at = (uintptr_t)queue(v, i);
	struct vhost_vring_addr addr = {
		.index = i,
		.desc_user_addr = at,
		.avail_user_addr = at + AVAIL_AT,
		.used_user_addr = at + USED_AT,
	};

	if (ioctl(v->fd, VHOST_SET_VRING_NUM, &num) || ioctl(v->fd, VHOST_SET_VRING_BASE, &base) ||
	    ioctl(v->fd, VHOST_SET_VRING_ADDR, &addr) || ioctl(v->fd, VHOST_SET_VRING_KICK, &kick))
		return fail(v, "vring");
	return 0;
}

static int open_tap(struct vhost *v)
{
	struct ifreq ifr;
	int s;

	v->tap = open("/dev/net/tun", O_RDWR | O_CLOEXEC);
	if (v->tap < 0)
		return fail(v, "tun");
	memset(&ifr, 0, sizeof(ifr));
	ifr.ifr_flags = IFF_TAP | IFF_NO_PI;
	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "kcov%u", v->cid);
	if (ioctl(v->tap, TUNSETIFF, &ifr))
		return fail(v, "TUNSETIFF");
	s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		s = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ifr.ifr_flags = IFF_UP;
	if (s < 0 || ioctl(s, SIOCSIFFLAGS, &ifr))
		return fail(v, "tap up");
	close(s);
	return 0;
}

/*
 * Only the transmit queue gets a backend, so that nothing which arrives at the interface can start
 * a section on its own.
 */
static int start_net(struct vhost *v)
{
	struct vhost_vring_file backend = { .index = 1 };

	v->queue = 1;
	if (open_tap(v)) {
		/* No backend: a kick still makes the worker run a section, a short one. */
		v->kind = "vhost-net without backend";
		return 0;
	}
	backend.fd = v->tap;
	v->kind = "vhost-net";
	if (ioctl(v->fd, VHOST_NET_SET_BACKEND, &backend))
		return fail(v, "VHOST_NET_SET_BACKEND");
	return 0;
}

static int start_vsock(struct vhost *v)
{
	uint64_t cid = v->cid;
	int on = 1;

	v->kind = "vhost-vsock";
	v->queue = 1;
	if (ioctl(v->fd, VHOST_VSOCK_SET_GUEST_CID, &cid) || ioctl(v->fd, VHOST_VSOCK_SET_RUNNING, &on))
		return fail(v, "vsock");
	return 0;
}

static int start_on(struct vhost *v, const char *path, uint64_t features, int (*start)(struct vhost *))
{
	struct {
		struct vhost_memory head;
		struct vhost_memory_region region;
	} mem;

	v->fd = open(path, O_RDWR | O_CLOEXEC);
	if (v->fd < 0)
		return fail(v, path);
	v->mem = mmap(NULL, 2 * QUEUE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (v->mem == MAP_FAILED)
		return fail(v, "mmap");
	memset(&mem, 0, sizeof(mem));
	mem.head.nregions = 1;
	mem.region.guest_phys_addr = mem.region.userspace_addr = (uintptr_t)v->mem;
	mem.region.memory_size = 2 * QUEUE_BYTES;
	if (ioctl(v->fd, VHOST_SET_OWNER) || ioctl(v->fd, VHOST_SET_FEATURES, &features) ||
	    ioctl(v->fd, VHOST_SET_MEM_TABLE, &mem))
		return fail(v, "vhost set-up");
	for (int i = 0; i < 2; i++) {
		v->kick[i] = eventfd(0, EFD_CLOEXEC);
		if (v->kick[i] < 0 || set_queue(v, i))
			return fail(v, "eventfd");
	}
	return start(v);
}

int vhost_start(struct vhost *v, uint32_t cid)
{
	memset(v, 0, sizeof(*v));
	v->cid = cid;
	if (!start_on(v, "/dev/vhost-net", 1UL << VHOST_NET_F_VIRTIO_NET_HDR, start_net))
		return 0;
	if (v->fd >= 0)
		close(v->fd);
	return start_on(v, "/dev/vhost-vsock", 0, start_vsock);
}

/* The worker is a thread of the owner since 6.4, and before that a kernel thread named after it. */
void vhost_workers(struct slot *s)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;

	while (d && (e = readdir(d))) {
		pid_t tid = atoi(e->d_name);

		if (tid && tid != s->tid && s->nworkers < MAX_WORKERS)
			s->workers[s->nworkers++] = tid;
	}
	if (d)
		closedir(d);
}

static size_t make_packet(struct vhost *v, unsigned char *data)
{
	struct virtio_vsock_hdr *hdr = (void *)data;
	uint32_t payload = 0;

	memset(data, 0, 128);
	if (strcmp(v->kind, "vhost-vsock")) {
		/*
		 * Broadcast, from a made-up address, of an experimental type that nobody listens
		 * for.
		 */
		memset(data + NET_HEADER, 0xff, 6);
		memcpy(data + NET_HEADER + 6, "\x02kcov", 6);
		data[NET_HEADER + 12] = 0x88;
		data[NET_HEADER + 13] = 0xb5;
		return NET_HEADER + 60;
	}
	/* A connection request to a port that nobody listens at. */
	hdr->src_cid = v->cid;
	hdr->dst_cid = 2;
	hdr->src_port = 1024;
	hdr->dst_port = 4242;
	hdr->len = payload;
	hdr->type = VIRTIO_VSOCK_TYPE_STREAM;
	hdr->op = VIRTIO_VSOCK_OP_REQUEST;
	return sizeof(*hdr);
}

/* Puts a packet into the ring, and waits until the worker has taken it. */
int vhost_packet(struct vhost *v)
{
	unsigned char *q = queue(v, v->queue);
	struct vring_desc *desc = (void *)q;
	struct vring_avail *avail = (void *)(q + AVAIL_AT);
	volatile struct vring_used *used = (void *)(q + USED_AT);
	uint64_t one = 1;

	desc[0].addr = (uintptr_t)(q + DATA_AT);
	desc[0].len = make_packet(v, q + DATA_AT);
	desc[0].flags = 0;
	avail->ring[v->avail % RING] = 0;
	__atomic_store_n(&avail->idx, ++v->avail, __ATOMIC_RELEASE);
	if (write(v->kick[v->queue], &one, sizeof(one)) != sizeof(one))
		return -1;
	for (int i = 0; i < 200; i++) {
		if (used->idx == v->avail)
			return 0;
		msleep(1);
	}
	return -1;
}

/* Endless sections of a vhost worker, under a handle of its own. */
void vhost_traffic(struct slot *s)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, 0x7001);
	struct vhost v;
	struct kc k;

	if (kc_setup(s, &k, 40 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 24 * PAGE_WORDS, NULL, 0, handle))
		return;
	slot_object(s, &k, 2, 1);
	if (vhost_start(&v, 71)) {
		slot_missing(s, "%s", v.why);
		return;
	}
	s->volatile_count = true;
	slot_extra(s, ", \"vhost\": \"%s\"", v.kind);
	atomic_store(&s->ready, 1);
	for (;;) {
		vhost_packet(&v);
		atomic_fetch_add(&shm->traffic, 1);
		if (k.area[0] >= k.size - 1)
			__atomic_store_n(&k.area[0], 0, __ATOMIC_SEQ_CST);
	}
}

/*
 * A worker that stays inside its section: it reads a descriptor whose page is registered with
 * userfaultfd and never comes, so it sleeps in a page fault. A section in flight for every dump,
 * without a breakpoint.
 */
static void stuck(struct slot *s, uint64_t instance, uint64_t words, uint32_t area_size, uint32_t cid, bool disable)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, instance), one = 1;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { 0 };
	struct vhost v;
	struct kc k;
	struct pollfd fault = { .events = POLLIN };
	int uffd;
	unsigned char *q;

	if (kc_setup(s, &k, words) || kc_remote_enable(s, &k, TRACE_PC, area_size, NULL, 0, handle))
		return;
	/* One for the file, one for the owner, one for the section. */
	slot_object(s, &k, 3, 1);
	if (vhost_start(&v, cid)) {
		slot_missing(s, "%s", v.why);
		return;
	}
	/* poll() works on a non-blocking descriptor only. */
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) {
		slot_missing(s, "userfaultfd: %s", strerror(errno));
		return;
	}
	q = queue(&v, v.queue);
	reg.range.start = (uintptr_t)q;
	reg.range.len = PAGE;
	reg.mode = UFFDIO_REGISTER_MODE_MISSING;
	if (ioctl(uffd, UFFDIO_REGISTER, &reg)) {
		slot_missing(s, "UFFDIO_REGISTER: %s", strerror(errno));
		return;
	}
	/*
	 * The rings' first page is in use; drop it and have its next touch wait. It is registered by
	 * then: the worker may still run for the start of the device, and would bring the page back.
	 */
	madvise(q, PAGE, MADV_REMOVE);
	slot_extra(s, ", \"vhost\": \"%s\", \"section_in_flight\": true", v.kind);
	fault.fd = uffd;
	if (write(v.kick[v.queue], &one, sizeof(one)) != sizeof(one))
		slot_missing(s, "kick");
	if (poll(&fault, 1, 10000) != 1 || fault.revents != POLLIN)
		slot_missing(s, "the worker met no page fault");
	vhost_workers(s);
	if (disable && !kc_disable(s, &k)) {
		s->remote = false;
		s->remote_size = s->nhandles = s->common = 0;
		/* The file and the section; the session that the section was begun in is over. */
		slot_object(s, &k, 2, 2);
	}
}

void vhost_inflight(struct slot *s)
{
	stuck(s, 0x7002, 41 * PAGE_WORDS, 25 * PAGE_WORDS, 72, false);
}

/* The owner disables while the worker is in its section: what that collects will be discarded. */
void vhost_stale(struct slot *s)
{
	stuck(s, 0x7005, 57 * PAGE_WORDS, 27 * PAGE_WORDS, 75, true);
}
