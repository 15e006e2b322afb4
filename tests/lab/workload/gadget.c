// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * The device side of the guest's USB: a gadget over raw-gadget and dummy_hcd, with one interface of
 * two bulk endpoints, no matching driver, and only the descriptors that enumeration needs.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/usb/ch9.h>
#include <linux/usb/raw_gadget.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#define VENDOR 0x6b63  /* "kc" */
#define PRODUCT 0x6f76 /* "ov" */
#define BULK 512

static const struct usb_device_descriptor device = {
	.bLength = USB_DT_DEVICE_SIZE,
	.bDescriptorType = USB_DT_DEVICE,
	.bcdUSB = LE16(0x0200),
	.bDeviceClass = USB_CLASS_VENDOR_SPEC,
	.bMaxPacketSize0 = 64,
	.idVendor = LE16(VENDOR),
	.idProduct = LE16(PRODUCT),
	.bNumConfigurations = 1,
};

struct config {
	struct usb_config_descriptor config;
	struct usb_interface_descriptor interface;
	unsigned char in[USB_DT_ENDPOINT_SIZE], out[USB_DT_ENDPOINT_SIZE];
} __attribute__((packed));

static struct config config = {
	.config = {
		.bLength = USB_DT_CONFIG_SIZE,
		.bDescriptorType = USB_DT_CONFIG,
		.wTotalLength = LE16(sizeof(struct config)),
		.bNumInterfaces = 1,
		.bConfigurationValue = 1,
		.bmAttributes = USB_CONFIG_ATT_ONE | USB_CONFIG_ATT_SELFPOWER,
		.bMaxPower = 1,
	},
	.interface = {
		.bLength = USB_DT_INTERFACE_SIZE,
		.bDescriptorType = USB_DT_INTERFACE,
		.bNumEndpoints = 2,
		.bInterfaceClass = USB_CLASS_VENDOR_SPEC,
	},
};

struct io {
	struct usb_raw_ep_io head;
	unsigned char data[BULK];
};

static int raw;
static int ep_in = -1, ep_out = -1;

/*
 * Which of the controller's endpoints can be ours. The address is the controller's if it insists on
 * one.
 */
static void find_endpoint(const struct usb_raw_eps_info *info, int n, bool in, unsigned char *desc)
{
	struct usb_endpoint_descriptor d = {
		.bLength = USB_DT_ENDPOINT_SIZE,
		.bDescriptorType = USB_DT_ENDPOINT,
		.bmAttributes = USB_ENDPOINT_XFER_BULK,
		.wMaxPacketSize = LE16(BULK),
	};

	for (int i = 0; i < n; i++) {
		const struct usb_raw_ep_info *e = &info->eps[i];

		if (!e->caps.type_bulk || !(in ? e->caps.dir_in : e->caps.dir_out) || e->limits.maxpacket_limit < BULK)
			continue;
		d.bEndpointAddress = e->addr == USB_RAW_EP_ADDR_ANY ? (in ? 1 : 2) : e->addr;
		break;
	}
	if (in)
		d.bEndpointAddress |= USB_DIR_IN;
	memcpy(desc, &d, USB_DT_ENDPOINT_SIZE);
}

/*
 * Every read and write of a raw endpoint waits until the host has taken its part: without a host
 * that asks, these threads sleep.
 */
static void *feed_in(void *arg)
{
	static struct io io;

	(void)arg;
	prctl(PR_SET_NAME, "kc-gadget/in");
	for (;;) {
		io.head.ep = ep_in;
		io.head.length = BULK;
		if (ioctl(raw, USB_RAW_IOCTL_EP_WRITE, &io) < 0)
			msleep(5);
	}
	return NULL;
}

static void *drain_out(void *arg)
{
	static struct io io;

	(void)arg;
	prctl(PR_SET_NAME, "kc-gadget/out");
	for (;;) {
		io.head.ep = ep_out;
		io.head.length = BULK;
		if (ioctl(raw, USB_RAW_IOCTL_EP_READ, &io) < 0)
			msleep(5);
	}
	return NULL;
}

static int enable(const unsigned char *desc)
{
	struct usb_endpoint_descriptor d = { 0 };

	memcpy(&d, desc, USB_DT_ENDPOINT_SIZE);
	return ioctl(raw, USB_RAW_IOCTL_EP_ENABLE, &d);
}

static void configure(void)
{
	pthread_t t;

	if (ep_in >= 0)
		return;
	ep_in = enable(config.in);
	ep_out = enable(config.out);
	ioctl(raw, USB_RAW_IOCTL_VBUS_DRAW, 1);
	ioctl(raw, USB_RAW_IOCTL_CONFIGURE, 0);
	if (ep_in >= 0)
		pthread_create(&t, NULL, feed_in, NULL);
	if (ep_out >= 0)
		pthread_create(&t, NULL, drain_out, NULL);
}

static void answer(const struct usb_ctrlrequest *r, const void *data, size_t n)
{
	static struct io io;

	memset(&io, 0, sizeof(io));
	if (n > le16toh(r->wLength))
		n = le16toh(r->wLength);
	io.head.length = n;
	memcpy(io.data, data, n);
	ioctl(raw, r->bRequestType & USB_DIR_IN ? USB_RAW_IOCTL_EP0_WRITE : USB_RAW_IOCTL_EP0_READ, &io);
}

static void control(const struct usb_ctrlrequest *r)
{
	static const unsigned char zeros[64];

	switch (r->bRequestType & USB_TYPE_MASK) {
	case USB_TYPE_VENDOR:
		/* Requests of the traffic itself: accept all. */
		answer(r, zeros, sizeof(zeros));
		return;
	case USB_TYPE_STANDARD:
		break;
	default:
		ioctl(raw, USB_RAW_IOCTL_EP0_STALL, 0);
		return;
	}
	switch (r->bRequest) {
	case USB_REQ_GET_DESCRIPTOR:
		switch (le16toh(r->wValue) >> 8) {
		case USB_DT_DEVICE:
			answer(r, &device, USB_DT_DEVICE_SIZE);
			return;
		case USB_DT_CONFIG:
			answer(r, &config, sizeof(config));
			return;
		}
		break;
	case USB_REQ_SET_CONFIGURATION:
		configure();
		answer(r, zeros, 0);
		return;
	case USB_REQ_SET_INTERFACE:
		answer(r, zeros, 0);
		return;
	case USB_REQ_GET_INTERFACE:
		answer(r, zeros, 1);
		return;
	case USB_REQ_GET_STATUS:
		answer(r, zeros, 2);
		return;
	}
	ioctl(raw, USB_RAW_IOCTL_EP0_STALL, 0);
}

static bool start(struct slot *s, int udc)
{
	struct usb_raw_init init = { .speed = USB_SPEED_HIGH };

	raw = open("/dev/raw-gadget", O_RDWR | O_CLOEXEC);
	if (raw < 0) {
		slot_missing(s, "/dev/raw-gadget: %s", strerror(errno));
		return false;
	}
	strcpy((char *)init.driver_name, "dummy_udc");
	snprintf((char *)init.device_name, sizeof(init.device_name), "dummy_udc.%d", udc);
	if (ioctl(raw, USB_RAW_IOCTL_INIT, &init) || ioctl(raw, USB_RAW_IOCTL_RUN, 0)) {
		slot_missing(s, "raw-gadget on dummy_udc.%d: %s", udc, strerror(errno));
		return false;
	}
	return true;
}

/* Return when the kernel has no more events for us, or when a signal ends the gadget. */
static void events(struct slot *s, bool mute)
{
	struct {
		struct usb_raw_event head;
		struct usb_ctrlrequest request;
	} event;
	struct usb_raw_eps_info info;
	int n;

	for (;;) {
		memset(&event, 0, sizeof(event));
		event.head.length = sizeof(event.request);
		if (ioctl(raw, USB_RAW_IOCTL_EVENT_FETCH, &event) < 0)
			return;
		switch (event.head.type) {
		case USB_RAW_EVENT_CONNECT:
			memset(&info, 0, sizeof(info));
			n = ioctl(raw, USB_RAW_IOCTL_EPS_INFO, &info);
			find_endpoint(&info, n, true, config.in);
			find_endpoint(&info, n, false, config.out);
			break;
		case USB_RAW_EVENT_CONTROL:
			atomic_fetch_add(&s->done_calls, 1);
			if (!mute)
				control(&event.request);
			break;
		}
	}
}

/* done_calls of the slot says which controller to use, and then counts control requests. */
void usb_gadget(struct slot *s)
{
	int udc = atomic_exchange(&s->done_calls, 0);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!start(s, udc))
		return;
	atomic_store(&s->ready, 1);
	events(s, false);
}

static void wake(int sig)
{
	(void)sig;
}

/*
 * A gadget that never answers. hub_event waits five seconds for the first descriptor, in the middle
 * of its remote section. What it asks for next is refused by the kernel, as the first request is
 * still open, and soon it gives up. Unplug the gadget and plug it in again before that.
 */
void usb_gadget_mute(struct slot *s)
{
	struct sigaction sa = { .sa_handler = wake };
	int udc = atomic_exchange(&s->done_calls, 0);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigaction(SIGALRM, &sa, NULL);
	while (start(s, udc)) {
		atomic_store(&s->ready, 1);
		alarm(4);
		events(s, true);
		close(raw);
	}
}
