// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 * A plugin of QEMU that logs the address of each kernel instruction that is executed between two markers, which are instructions of the
 * guest's program without an effect: on x86-64 nops of 8 bytes whose displacement is 0x4b430001 to begin and 0x4b430000 to end, on arm64
 * "mov xzr, #0x4b44" to begin and "mov xzr, #0x4b43" to end.
 * The log has words of 32 bits: 0xffffffff where it begins, then the lower halves of the addresses in order.
 * With every=FILE in place of out=FILE it logs all of a guest's run, each kernel instruction once, in words of 64 bits.
 *   gcc -shared -fPIC -DAPI=1 -DKERNEL=0xffffffff80000000 -o execution_log.so execution_log.c
 *   qemu-system-x86_64 -plugin ./execution_log.so,out=FILE ...
 * API is 1 for QEMU 6 to 8, 2 for 9.0, 3 since 9.1; KERNEL is where the kernel's addresses begin. What the plugin uses of the interface
 * is declared here: few distributions have the header.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))
#define MOST_MARKER_BYTES 8
#define NO_REGISTERS 0

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef void (*translation_function)(plugin_id, struct qemu_plugin_tb *);
typedef void (*execution_function)(unsigned int cpu, void *data);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, translation_function);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, execution_function, int registers, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
#if API < 3
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
#else
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *, size_t);
#endif

EXPORTED int qemu_plugin_version = API;

static FILE *file;
static bool is_on, is_every;

static void put(uint32_t word)
{
	fwrite(&word, sizeof(word), 1, file);
}

static void log_execution(unsigned int cpu, void *address)
{
	(void)cpu;
	if (is_on)
		put((uintptr_t)address);
}

struct seen {
	uint64_t address;
	bool was_executed;
};

static void log_first(unsigned int cpu, void *data)
{
	struct seen *seen = data;

	(void)cpu;
	if (seen->was_executed)
		return;
	seen->was_executed = true;
	fwrite(&seen->address, sizeof(seen->address), 1, file);
	/* QEMU may be ended by a signal. */
	fflush(file);
}

static void pass_marker(unsigned int cpu, void *begins)
{
	(void)cpu;
	is_on = begins != NULL;
	if (is_on)
		put(UINT32_MAX);
	else
		fflush(file);
}

static void copy_bytes(const struct qemu_plugin_insn *instruction, unsigned char *bytes, size_t size)
{
#if API < 3
	memcpy(bytes, qemu_plugin_insn_data(instruction), size);
#else
	qemu_plugin_insn_data(instruction, bytes, size);
#endif
}

enum marker { NO_MARKER, END, BEGIN };

static enum marker find_marker(const struct qemu_plugin_insn *instruction)
{
	size_t size = qemu_plugin_insn_size(instruction);
	unsigned char bytes[MOST_MARKER_BYTES];

	if (size != 4 && size != 8)
		return NO_MARKER;
	copy_bytes(instruction, bytes, size);
	if (size == 4 && !memcmp(bytes, "\x7f\x68\x89\xd2", size))
		return END;
	if (size == 4 && !memcmp(bytes, "\x9f\x68\x89\xd2", size))
		return BEGIN;
	if (size == 8 && !memcmp(bytes, "\x0f\x1f\x84\x00", 4) && !memcmp(bytes + 5, "\x00\x43\x4b", 3))
		return bytes[4] ? BEGIN : END;
	return NO_MARKER;
}

static void look_at(plugin_id id, struct qemu_plugin_tb *block)
{
	size_t i;

	(void)id;
	for (i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
		struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
		uint64_t address = qemu_plugin_insn_vaddr(instruction);
		enum marker marker;

		if (is_every && address >= KERNEL) {
			struct seen *seen = calloc(1, sizeof(*seen));

			if (!seen)
				abort();
			seen->address = address;
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, log_first, NO_REGISTERS, seen);
		} else if (address >= KERNEL) {
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, log_execution, NO_REGISTERS,
							       (void *)(uintptr_t)address);
		}
		if (is_every || address >= KERNEL)
			continue;
		marker = find_marker(instruction);
		if (marker != NO_MARKER)
			qemu_plugin_register_vcpu_insn_exec_cb(instruction, pass_marker, NO_REGISTERS,
							       marker == BEGIN ? &is_on : NULL);
	}
}

EXPORTED int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc != 1)
		return 1;
	is_every = !strncmp(argv[0], "every=", 6);
	if (!is_every && strncmp(argv[0], "out=", 4))
		return 1;
	file = fopen(strchr(argv[0], '=') + 1, "wb");
	if (!file)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, look_at);
	return 0;
}
