// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "branches.h"

/* Of kernels: a bit for each byte of this range takes 128 MiB at most. Further addresses are no targets. */
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

/* Compiled once for each kind. */
static inline __attribute__((always_inline)) size_t find_branches(const unsigned char *text, size_t size, uint64_t address,
								  int kind, const struct kcovdbg_targets *targets,
								  size_t *start, uint64_t *backs, uint64_t *led, size_t room)
{
	size_t i, count = 0, shortest = kind == KCOVDBG_SHORT_JUMPS ? 2 : 5;

	for (i = *start; i + shortest <= size && count < room; i++) {
		size_t end = i + 1;
		uint64_t back, target;

		if (kind == KCOVDBG_CALLS) {
			const unsigned char *next = memchr(text + i, 0xe8, size - 4 - i);

			if (!next) {
				i = size;
				break;
			}
			i = next - text;
			end = i + 1;
		} else if (kind == KCOVDBG_SHORT_JUMPS) {
			if (text[i] != 0xeb && (text[i] & 0xf0) != 0x70)
				continue;
			back = address + i + 2;
			target = back + (int64_t)(int8_t)text[end];
		} else if (text[i] == 0x0f) {
			if ((text[i + 1] & 0xf0) != 0x80 || i + 6 > size)
				continue;
			end++;
		} else if (text[i] != 0xe9) {
			continue;
		}
		if (kind != KCOVDBG_SHORT_JUMPS) {
			back = address + end + 4;
			target = back + (int64_t)(int32_t)load(text + end);
		}
		if (is_target(targets, target)) {
			backs[count] = back;
			led[count++] = target;
		}
	}
	*start = i + shortest <= size ? i : size;
	return count;
}

size_t kcovdbg_x86_branches(const unsigned char *text, size_t size, uint64_t address, int kind,
			    const struct kcovdbg_targets *targets, size_t *start, uint64_t *backs, uint64_t *led, size_t room)
{
	switch (kind) {
	case KCOVDBG_CALLS:
		return find_branches(text, size, address, KCOVDBG_CALLS, targets, start, backs, led, room);
	case KCOVDBG_JUMPS:
		return find_branches(text, size, address, KCOVDBG_JUMPS, targets, start, backs, led, room);
	default:
		return find_branches(text, size, address, KCOVDBG_SHORT_JUMPS, targets, start, backs, led, room);
	}
}
