// SPDX-License-Identifier: LGPL-2.1-or-later
/* Uses the device of the kernel's sample in Rust: samples/rust/rust_misc_device.rs. Prints the value that it got back. */
#include <fcntl.h>
#include <linux/ioctl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

int main(void)
{
	int fd = open("/dev/rust-misc-device", O_RDWR), value = 123;

	if (fd < 0 || ioctl(fd, _IO('|', 0x80)) || ioctl(fd, _IOW('|', 0x82, int), &value))
		return 1;
	value = 0;
	if (ioctl(fd, _IOR('|', 0x81, int), &value) || write(fd, "text", 4) != 4)
		return 1;
	/* Unknown to the device. */
	if (!ioctl(fd, _IO('|', 0x83)))
		return 1;
	printf("%d\n", value);
	return close(fd);
}
