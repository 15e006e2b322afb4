/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Init of a guest: makes system calls under TRACE_PC, many of which fail, each between markers that
 * execution_log.c knows. Writes into /out/calls, of each call: the number of records (4 bytes), errno (4 bytes), its text (120 bytes, padded
 * with zeros), and the lower halves of the recorded PCs. Then turns the machine off.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/kcov.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>

/* Many calls are made to fail: their sizes and addresses are wrong on purpose. */
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wstringop-overread"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define WORDS (1 << 18)
#ifdef __aarch64__
#define MARK(n) asm volatile("mov xzr, #0x4b43+" #n::: "memory")
#else
#define MARK(n) asm volatile(".byte 0x0f,0x1f,0x84,0x00\n.long 0x4b430000+" #n::: "memory")
#endif

static volatile uint64_t *buffer;
static FILE *out;

static void keep(const char *text, int error)
{
	uint32_t count = buffer[0], i;
	char padded[120] = { 0 };

	strncpy(padded, text, sizeof(padded) - 1);
	fwrite(&count, sizeof(count), 1, out);
	fwrite(&error, sizeof(error), 1, out);
	fwrite(padded, sizeof(padded), 1, out);
	for (i = 1; i <= count; i++) {
		uint32_t half = buffer[i];

		fwrite(&half, sizeof(half), 1, out);
	}
}

/* The buffer was touched before: no page fault for it is between the markers. */
#define CALL(call) \
	({ \
		long got_; \
		errno = 0; \
		buffer[0] = 0; \
		MARK(1); \
		got_ = (long)(call); \
		MARK(0); \
		keep(#call, errno); \
		got_; \
	})

static void make_calls(void);

int main(void)
{
	int device;
	long i;

	mkdir("/out", 0755);
	if (mount("none", "/proc", "proc", 0, NULL) || mount("none", "/sys", "sysfs", 0, NULL) ||
	    mount("none", "/sys/kernel/debug", "debugfs", 0, NULL) || mount("none", "/tmp", "tmpfs", 0, NULL) ||
	    mount("exchange", "/out", "9p", 0, "trans=virtio,version=9p2000.L,msize=262144"))
		perror("mount");
	mount("none", "/dev", "devtmpfs", 0, NULL);
	out = fopen("/out/calls", "w");
	device = open("/sys/kernel/debug/kcov", O_RDWR);
	if (!out || device < 0 || ioctl(device, KCOV_INIT_TRACE, WORDS)) {
		perror("open");
		reboot(RB_POWER_OFF);
	}
	buffer = mmap(NULL, WORDS * sizeof(*buffer), PROT_READ | PROT_WRITE, MAP_SHARED, device, 0);
	for (i = 0; i < WORDS; i += 512)
		buffer[i] = 0;
	if (ioctl(device, KCOV_ENABLE, KCOV_TRACE_PC))
		perror("enable");
	make_calls();
	ioctl(device, KCOV_DISABLE, 0);
	fclose(out);
	sync();
	umount("/out");
	reboot(RB_POWER_OFF);
	perror("power off");
}
