// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The host side of the guest's USB: finding buses and the device, owners of bus handles, and
 * traffic through usbfs.
 */
#include "lab.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcov.h>
#include <linux/usb/ch9.h>
#include <linux/usbdevice_fs.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BULK 512

static struct slot *owner, *gadget;

/* The bus number of dummy_hcd.INDEX, or 0. */
int usb_dummy_bus(int index)
{
	char path[64];
	struct dirent *e;
	int bus = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/sys/devices/platform/dummy_hcd.%d", index);
	d = opendir(path);
	while (d && (e = readdir(d)))
		if (!strncmp(e->d_name, "usb", 3) && isdigit(e->d_name[3]))
			bus = atoi(e->d_name + 3);
	if (d)
		closedir(d);
	return bus;
}

bool usb_have_gadget(void)
{
	return !access("/dev/raw-gadget", F_OK);
}

static int sysfs_number(const char *device, const char *file, int base)
{
	char path[400], buf[32];

	snprintf(path, sizeof(path), "/sys/bus/usb/devices/%s/%s", device, file);
	return slurp(path, buf, sizeof(buf)) > 0 ? (int)strtol(buf, NULL, base) : -1;
}

/*
 * The usbfs node of our gadget on this bus, once it has a configuration. Returns its device number.
 */
int usb_find_device(int bus, char *path, size_t n)
{
	DIR *d = opendir("/sys/bus/usb/devices");
	struct dirent *e;
	int found = 0;

	while (d && (e = readdir(d))) {
		if (sysfs_number(e->d_name, "idVendor", 16) != 0x6b63 || sysfs_number(e->d_name, "busnum", 10) != bus ||
		    sysfs_number(e->d_name, "bConfigurationValue", 10) != 1)
			continue;
		found = sysfs_number(e->d_name, "devnum", 10);
		snprintf(path, n, "/dev/bus/usb/%03d/%03d", bus, found);
	}
	if (d)
		closedir(d);
	return found > 0 ? found : 0;
}

/* Holds the handle of dummy_hcd's bus, and those of two buses that nobody has. */
static void st_usb(struct slot *s)
{
	int bus = usb_dummy_bus(0);
	uint64_t handles[] = {
		kcov_remote_handle(KCOV_SUBSYSTEM_USB, bus),
		kcov_remote_handle(KCOV_SUBSYSTEM_USB, 200),
		kcov_remote_handle(KCOV_SUBSYSTEM_USB, 201),
	};
	struct kc k;

	if (!bus) {
		slot_missing(s, "no dummy_hcd");
		return;
	}
	if (kc_setup(s, &k, 128 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 96 * PAGE_WORDS, handles, 3, 0))
		return;
	slot_object(s, &k, 2, 1);
	slot_extra(s, ", \"bus\": %d, \"area_sizes\": [%lu]", bus, 96 * PAGE_WORDS);
}

/* In two steps, because the other states can be made while the device is enumerated. */
void usb_start(void)
{
	dataflow_usb();
	owner = spawn_state("kc-usb", st_usb);
	gadget = slot_new("kc-gadget");
	if (!slot_wait(owner, 5000) || !usb_have_gadget()) {
		slot_missing(gadget, "%s", owner->missing[0] ? owner->missing : "no /dev/raw-gadget");
		atomic_store(&gadget->ready, 1);
		return;
	}
	gadget->pid = gadget->tid = spawn(gadget, usb_gadget);
}

void usb_finish(void)
{
	uint64_t end = now_ms() + 15000;
	char path[64];
	int dev = 0;

	if (!slot_wait(gadget, 5000))
		return;
	while (!(dev = usb_find_device(usb_dummy_bus(0), path, sizeof(path))) && now_ms() < end)
		msleep(10);
	slot_extra(gadget, ", \"device\": \"%s\", \"configured\": %s, \"control_requests\": %d", dev ? path : "",
		   dev ? "true" : "false", atomic_load(&gadget->done_calls));
}

/*
 * Bulk transfers need the interface, which one process can have: a second one makes do with control
 * transfers.
 */
static int open_device(struct slot *s, bool *claimed)
{
	unsigned int interface = 0;
	char path[64];
	int fd;

	if (!usb_find_device(usb_dummy_bus(0), path, sizeof(path))) {
		slot_missing(s, "no device on the bus");
		return -1;
	}
	fd = open(path, O_RDWR);
	if (fd < 0) {
		slot_missing(s, "%s: %s", path, strerror(errno));
		return -1;
	}
	*claimed = !ioctl(fd, USBDEVFS_CLAIMINTERFACE, &interface);
	slot_extra(s, ", \"device\": \"%s\", \"transfers\": \"%s\"", path, *claimed ? "bulk and control" : "control");
	return fd;
}

static unsigned char endpoint(int fd, bool in)
{
	unsigned char desc[256];
	int n = pread(fd, desc, sizeof(desc), 0);

	for (int at = 0; at + 2 < n && desc[at]; at += desc[at])
		if (desc[at + 1] == USB_DT_ENDPOINT && !(desc[at + 2] & 0x80) == !in)
			return desc[at + 2];
	return in ? 0x81 : 0x02;
}

/*
 * Asynchronous transfers, and system calls until they are back: the softirq that gives them back
 * interrupts this task while it runs, which is what makes KCOV save a session and resume it. A task that waited would be
 * asleep by then. Without a number of rounds it never ends.
 */
static void transfers(int fd, struct kc *k, bool bulk, unsigned long rounds)
{
	static const struct usb_ctrlrequest setup = {
		.bRequestType = USB_DIR_IN | USB_TYPE_VENDOR,
		.bRequest = 0x42,
		.wLength = LE16(64),
	};
	static unsigned char data[3][BULK];
	struct usbdevfs_urb urb[3], *back;
	unsigned char eps[3] = { 0, endpoint(fd, true), endpoint(fd, false) };

	for (unsigned long round = 0; !rounds || round < rounds; round++) {
		int pending = 0;

		for (int i = 0; i < 3; i++) {
			/* Control transfers now and then only, unless there is nothing else. */
			if (bulk ? !i && round % 16 : i)
				continue;
			memset(&urb[i], 0, sizeof(urb[i]));
			urb[i].type = i ? USBDEVFS_URB_TYPE_BULK : USBDEVFS_URB_TYPE_CONTROL;
			urb[i].endpoint = eps[i];
			urb[i].buffer = data[i];
			urb[i].buffer_length = i ? BULK : sizeof(setup) + 64;
			if (!i)
				memcpy(data[i], &setup, sizeof(setup));
			pending += !ioctl(fd, USBDEVFS_SUBMITURB, &urb[i]);
		}
		if (!pending)
			msleep(10);
		while (pending) {
			syscall(SYS_getppid);
			if (k && k->area[k->bitmap_words] >= k->size - k->bitmap_words - 1)
				__atomic_store_n(&k->area[k->bitmap_words], 0, __ATOMIC_SEQ_CST);
			if (!ioctl(fd, USBDEVFS_REAPURBNDELAY, &back))
				pending--;
			else if (errno == ENODEV)
				break;
		}
		atomic_fetch_add(&shm->traffic, 1);
	}
}

void usb_traffic_enabled(struct slot *s)
{
	bool bulk;
	struct kc k;
	int fd = open_device(s, &bulk);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fd < 0 || kc_setup(s, &k, 42 * PAGE_WORDS))
		return;
	slot_object(s, &k, 2, 1);
	s->volatile_count = true;
	s->asleep = false;
	if (kc_special() == TRACE_UNIQUE)
		k.bitmap_words = PAGE_WORDS;
	if (kc_enable(s, &k, kc_special()))
		return;
	atomic_store(&s->ready, 1);
	transfers(fd, &k, bulk, 0);
}

/*
 * The owner of a handle, interrupted by softirqs' sections that collect for kc-usb. From 5.8 to 6.9
 * such a task loses its kcov: it had no mode, so that there was nothing to save.
 */
void usb_lost_owner(struct slot *s)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, 0x7003);
	bool bulk;
	struct kc k;
	int fd = open_device(s, &bulk);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fd < 0 || kc_setup(s, &k, 44 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 27 * PAGE_WORDS, NULL, 0, handle))
		return;
	slot_object(s, &k, 2, 1);
	transfers(fd, NULL, bulk, 200);
}

void usb_traffic_plain(struct slot *s)
{
	bool bulk;
	int fd = open_device(s, &bulk);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (fd < 0)
		return;
	s->asleep = false;
	atomic_store(&s->ready, 1);
	transfers(fd, NULL, bulk, 0);
}

/* Holds the handle of the second controller's bus, which kc-usb does not have. */
static void own_second_bus(struct slot *s, int udc)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_USB, usb_dummy_bus(udc));
	struct kc k;

	if (kc_setup(s, &k, 43 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 26 * PAGE_WORDS, &handle, 1, 0))
		return;
	slot_object(s, &k, 2, 1);
	s->volatile_count = true;
}

void usb_mute_owner(struct slot *s)
{
	own_second_bus(s, atomic_load(&s->done_calls));
	if (!s->missing[0])
		usb_gadget_mute(s);
}

/* Plugs a gadget in and pulls it out again, for ever: hub_event enumerates it each time. */
static void plug_for_ever(struct slot *s, bool own)
{
	int udc = atomic_exchange(&s->done_calls, 0);
	int bus = usb_dummy_bus(udc);
	char path[64];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!usb_have_gadget()) {
		slot_missing(s, "no /dev/raw-gadget");
		return;
	}
	slot_extra(s, ", \"bus\": %d", bus);
	if (own && udc) {
		own_second_bus(s, udc);
		/* The owner sleeps: kernels whose owners have no mode lose one that a softirq's section interrupts. */
		if (fork())
			stand(s);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		slot_comm(&(struct slot){ 0 }, "kc-plugger");
	} else {
		s->asleep = false;
		atomic_store(&s->ready, 1);
	}
	for (;;) {
		uint64_t end = now_ms() + 10000;
		struct slot scratch = { .state = "kc-plug" };
		pid_t pid;

		atomic_store(&scratch.done_calls, udc);
		pid = spawn(&scratch, usb_gadget);
		while (!usb_find_device(bus, path, sizeof(path)) && now_ms() < end)
			msleep(5);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		while (usb_find_device(bus, path, sizeof(path)) && now_ms() < end)
			msleep(5);
		atomic_fetch_add(&shm->traffic, 1);
	}
}

void usb_traffic_hub(struct slot *s)
{
	plug_for_ever(s, true);
}

/* Nobody owns the bus's handle. */
void usb_traffic_plug(struct slot *s)
{
	plug_for_ever(s, false);
}

/* So many rounds of transfers by a task of whatever kind. Returns 0, or -1. */
int usb_transfers(struct slot *s, unsigned long rounds)
{
	bool bulk;
	int fd = open_device(s, &bulk);

	if (fd < 0)
		return -1;
	transfers(fd, NULL, bulk, rounds);
	close(fd);
	return 0;
}
