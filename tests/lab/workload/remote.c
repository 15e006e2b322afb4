// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * Owners of KCOV_REMOTE_ENABLE: with a common handle that a vhost worker carries, with USB handles,
 * without any; and their heirs.
 */
#include "lab.h"

#include <linux/kcov.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HANDLE_1 0x4201UL
#define HANDLE_2 0x4202UL
#define HANDLE_CHILD 0x4203UL
#define HANDLE_ORPHAN 0x4204UL

static struct slot *child;

static void vhost_owner(struct slot *s, uint64_t words, enum trace mode, uint32_t area_size, uint64_t handle,
			const uint64_t *more, int nmore, uint32_t cid)
{
	struct vhost v;
	struct kc k;
	int sent = 0;

	if (kc_setup(s, &k, words) || kc_remote_enable(s, &k, mode, area_size, more, nmore, handle))
		return;
	slot_object(s, &k, 2, 1);
	if (vhost_start(&v, cid)) {
		/* The owner and its handle exist anyway, but no section runs. */
		slot_extra(s, ", \"vhost\": null, \"vhost_missing\": \"%s\"", v.why);
		return;
	}
	vhost_workers(s);
	for (int i = 0; i < 3; i++)
		sent += !vhost_packet(&v);
	slot_extra(s, ", \"vhost\": \"%s\", \"packets\": %d, \"area_sizes\": [%u]", v.kind, sent, area_size);
}

static void st_remote(struct slot *s)
{
	vhost_owner(s, 64 * PAGE_WORDS, TRACE_PC, 40 * PAGE_WORDS, kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_1), NULL, 0,
		    51);
}

/*
 * Comparisons, an area of another size, and USB handles of buses that don't exist beside the common
 * one.
 */
static void st_remote2(struct slot *s)
{
	uint64_t usb[] = { kcov_remote_handle(KCOV_SUBSYSTEM_USB, 0xc0ffee), kcov_remote_handle(KCOV_SUBSYSTEM_USB, 0xc0ffef) };

	vhost_owner(s, 65 * PAGE_WORDS, TRACE_CMP, 50 * PAGE_WORDS + 8, kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_2),
		    usb, 2, 52);
}

/* The kernel accepts it, but no section can collect for it. */
static void st_nohandle(struct slot *s)
{
	struct kc k;

	if (kc_setup(s, &k, 33 * PAGE_WORDS))
		return;
	if (!kc_remote_enable(s, &k, TRACE_CMP, 100, NULL, 0, 0))
		slot_object(s, &k, 2, 1);
}

static void st_child(struct slot *s)
{
	(void)s;
}

/* A child inherits the common handle and nothing else. Here it also shares the descriptor. */
static void st_parent(struct slot *s)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_CHILD);
	struct kc k;

	if (kc_setup(s, &k, 34 * PAGE_WORDS) || kc_remote_enable(s, &k, TRACE_PC, 4096, NULL, 0, handle))
		return;
	slot_object(s, &k, 2, 1);
	*child = (struct slot){ .used = true, .asleep = true };
	strcpy(child->state, "kc-child");
	slot_extra(child, ", \"kcov_handle\": \"0x%lx\", \"handle_of\": \"%s\", \"fds_shared_with\": %d", handle, s->state,
		   s->pid);
	slot_call(s, "fork");
	spawn(child, st_child);
	slot_wait(child, 5000);
}

static void orphan_grandchild(struct slot *s)
{
	(void)s;
}

/* Inherited a handle whose owner has exited: the task keeps the handle, but it is not registered. */
static void orphan_maker(struct slot *s)
{
	uint64_t handle = kcov_remote_handle(KCOV_SUBSYSTEM_COMMON, HANDLE_ORPHAN);
	struct slot scratch = { 0 };
	struct kc k;

	if (kc_setup(&scratch, &k, PAGE_WORDS) || kc_remote_enable(&scratch, &k, TRACE_PC, 512, NULL, 0, handle)) {
		slot_missing(s, "%s", scratch.missing);
		return;
	}
	if (!fork()) {
		syscall(SYS_munmap, k.area, PAGE);
		close(k.fd);
		slot_comm(s, s->state);
		slot_extra(s, ", \"kcov_handle\": \"0x%lx\", \"handle_of\": null", handle);
		orphan_grandchild(s);
		stand(s);
	}
	_exit(0);
}

void states_remote(void)
{
	struct slot *orphan;

	spawn_state("kc-remote", st_remote);
	spawn_state("kc-remote2", st_remote2);
	spawn_state("kc-nohandle", st_nohandle);
	child = slot_new("kc-child");
	spawn_state("kc-parent", st_parent);
	orphan = slot_new("kc-orphan");
	spawn(orphan, orphan_maker);
}
