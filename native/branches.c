// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "branches.h"

/* For kernels: one bit for each byte of this range, at most 128 MiB. Addresses beyond it are not targets. */
#define MAX_RANGE (1ULL << 30)

struct kcovdbg_targets {
	uint64_t base, size;
	uint64_t bits[];
};

struct kcovdbg_targets *kcovdbg_targets_new(const uint64_t *addresses, size_t count)
{
	struct kcovdbg_targets *targets;
	uint64_t low = UINT64_MAX, high = 0, size;
	size_t i;

	for (i = 0; i < count; i++) {
		low = addresses[i] < low ? addresses[i] : low;
		high = addresses[i] > high ? addresses[i] : high;
	}
	size = !count ? 0 : high - low < MAX_RANGE ? high - low + 1 : MAX_RANGE;
	targets = calloc(1, sizeof(*targets) + (size / 64 + 1) * sizeof(uint64_t));
	if (!targets)
		return NULL;
	targets->base = low;
	targets->size = size;
	for (i = 0; i < count; i++) {
		uint64_t offset = addresses[i] - low;

		if (offset < size)
			targets->bits[offset >> 6] |= 1ULL << (offset & 63);
	}
	return targets;
}

void kcovdbg_targets_free(struct kcovdbg_targets *targets)
{
	free(targets);
}

static inline bool is_target(const struct kcovdbg_targets *targets, uint64_t address)
{
	uint64_t offset = address - targets->base;

	return offset < targets->size && targets->bits[offset >> 6] >> (offset & 63) & 1;
}

static inline uint32_t load(const unsigned char *at)
{
	return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

static size_t find_calls(const unsigned char *text, size_t size, uint64_t address, const struct kcovdbg_targets *targets,
			 size_t *start, size_t stop, uint64_t *backs, uint64_t *led, size_t room)
{
	size_t i, count = 0;

	if (stop + 4 > size)
		stop = size > 4 ? size - 4 : 0;
	for (i = *start; i < stop && count < room; i++) {
		const unsigned char *next = memchr(text + i, 0xe8, stop - i);
		uint64_t back, target;

		if (!next)
			break;
		i = next - text;
		back = address + i + 5;
		target = back + (int64_t)(int32_t)load(text + i + 1);
		if (is_target(targets, target)) {
			backs[count] = back;
			led[count++] = target;
		}
	}
	*start = count == room ? i : SIZE_MAX;
	return count;
}

/* The first byte in a range, the end of the range where there is none. */
static inline size_t find_byte(const unsigned char *text, unsigned char byte, size_t start, size_t end)
{
	const unsigned char *found = start < end ? memchr(text + start, byte, end - start) : NULL;

	return found ? (size_t)(found - text) : end;
}

static size_t find_jumps(const unsigned char *text, size_t size, uint64_t address, const struct kcovdbg_targets *targets,
			 size_t *start, size_t stop, uint64_t *backs, uint64_t *led, size_t room)
{
	size_t i, plain, conditional, count = 0;

	if (stop + 4 > size)
		stop = size > 4 ? size - 4 : 0;
	/* e9, and 0f 80 to 0f 8f. */
	plain = find_byte(text, 0xe9, *start, stop);
	conditional = find_byte(text, 0x0f, *start, stop);
	while ((i = plain < conditional ? plain : conditional) < stop && count < room) {
		size_t length = 5;
		uint64_t back, target;

		if (i == plain) {
			plain = find_byte(text, 0xe9, i + 1, stop);
		} else {
			conditional = find_byte(text, 0x0f, i + 1, stop);
			length = 6;
			if ((text[i + 1] & 0xf0) != 0x80 || i + length > size)
				continue;
		}
		back = address + i + length;
		target = back + (int64_t)(int32_t)load(text + i + length - 4);
		if (is_target(targets, target)) {
			backs[count] = back;
			led[count++] = target;
		}
	}
	*start = count == room ? i : SIZE_MAX;
	return count;
}

/* Whether a range has a target, or there is one within 63 bytes of it. */
static inline bool may_have_targets(const struct kcovdbg_targets *targets, uint64_t first, uint64_t last)
{
	uint64_t low = first > targets->base ? first - targets->base : 0;
	uint64_t high = last - targets->base, word;

	if (last < targets->base || low >= targets->size)
		return false;
	high = high < targets->size ? high : targets->size - 1;
	for (word = low >> 6; word <= high >> 6; word++)
		if (targets->bits[word])
			return true;
	return false;
}

static const bool is_short_jump[256] = { [0x70 ... 0x7f] = true, [0xeb] = true };

static size_t find_short_jumps(const unsigned char *text, size_t size, uint64_t address, const struct kcovdbg_targets *targets,
			       size_t *start, size_t stop, uint64_t *backs, uint64_t *led, size_t room)
{
	size_t i, end, count = 0;

	if (stop + 1 > size)
		stop = size ? size - 1 : 0;
	for (i = *start; i < stop && count < room; i = end) {
		uint64_t at = address + i;

		end = i + 64 < stop ? i + 64 : stop;
		/* Half of the code is far from any target. */
		if (!may_have_targets(targets, at > 126 ? at - 126 : 0, address + end + 128))
			continue;
		for (; i < end && count < room; i++) {
			uint64_t back = address + i + 2;

			if (is_short_jump[text[i]] && is_target(targets, back + (int64_t)(int8_t)text[i + 1])) {
				backs[count] = back;
				led[count++] = back + (int64_t)(int8_t)text[i + 1];
			}
		}
		end = i;
	}
	*start = count == room ? i : SIZE_MAX;
	return count;
}

/* The length of an indirect call or jump by its ModRM byte, 0 for one with a displacement alone, or with a SIB byte. */
static inline size_t indirect_length(unsigned char modrm)
{
	switch (modrm & 0xc7) {
	case 0x04:
	case 0x05:
	case 0x44:
	case 0x84:
		return 0;
	}
	switch (modrm >> 6) {
	case 1:
		return 3;
	case 2:
		return 6;
	default:
		return 2;
	}
}

static size_t find_indirect(const unsigned char *text, size_t size, uint64_t address, int kind,
			    const struct kcovdbg_targets *targets, size_t *start, size_t stop, uint64_t *backs, uint64_t *led,
			    size_t room)
{
	/* In the ModRM byte: call is /2, jump is /4. */
	unsigned char operation = kind == KCOVDBG_INDIRECT_CALLS ? 0x10 : 0x20;
	size_t i, count = 0;

	if (stop + 1 > size)
		stop = size ? size - 1 : 0;
	for (i = *start; i < stop && count < room; i++) {
		const unsigned char *next = memchr(text + i, 0xff, stop - i);
		size_t length, end;

		if (!next)
			break;
		i = next - text;
		if ((next[1] & 0x38) != operation)
			continue;
		end = i;
		if (kind == KCOVDBG_INDIRECT_CALLS) {
			length = indirect_length(next[1]);
			end += length;
			if (!length || (end >= 5 && end <= size && text[end - 5] == 0xe8 &&
					is_target(targets, address + end + (int64_t)(int32_t)load(text + end - 4))))
				continue;
		}
		backs[count] = address + end;
		led[count++] = 0;
	}
	*start = count == room ? i : SIZE_MAX;
	return count;
}

size_t kcovdbg_x86_branches(const unsigned char *text, size_t size, uint64_t address, int kind,
			    const struct kcovdbg_targets *targets, size_t *start, size_t stop, uint64_t *backs, uint64_t *led,
			    size_t room)
{
	/* So that the end of an instruction can be computed. */
	stop = stop < size ? stop : size;
	switch (kind) {
	case KCOVDBG_CALLS:
		return find_calls(text, size, address, targets, start, stop, backs, led, room);
	case KCOVDBG_JUMPS:
		return find_jumps(text, size, address, targets, start, stop, backs, led, room);
	case KCOVDBG_SHORT_JUMPS:
		return find_short_jumps(text, size, address, targets, start, stop, backs, led, room);
	default:
		return find_indirect(text, size, address, kind, targets, start, stop, backs, led, room);
	}
}

size_t kcovdbg_arm64_branches(const unsigned char *text, size_t size, uint64_t address, int kind,
			      const struct kcovdbg_targets *targets, size_t *start, size_t stop, uint64_t *backs, uint64_t *led,
			      size_t room)
{
	/* BL, B; BLR and BR without authentication. */
	bool is_call = kind == KCOVDBG_CALLS || kind == KCOVDBG_INDIRECT_CALLS;
	bool is_direct = kind == KCOVDBG_CALLS || kind == KCOVDBG_JUMPS;
	uint32_t mask = is_direct ? 0xfc000000 : 0xfffffc1f;
	uint32_t opcode = is_direct ? (is_call ? 0x94000000 : 0x14000000) : (is_call ? 0xd63f0000 : 0xd61f0000);
	size_t i, count = 0;

	stop = kind == KCOVDBG_SHORT_JUMPS ? 0 : stop < size ? stop : size;
	for (i = (*start + 3) & ~(size_t)3; i < stop && size - i >= 4 && count < room; i += 4) {
		uint32_t word = load(text + i);
		uint64_t at = address + i, target = 0;

		if ((word & mask) != opcode)
			continue;
		if (is_direct) {
			target = at + ((int64_t)((uint64_t)word << 38) >> 36);
			if (!is_target(targets, target))
				continue;
		}
		backs[count] = is_direct || is_call ? at + 4 : at;
		led[count++] = target;
	}
	*start = count == room ? i : SIZE_MAX;
	return count;
}
