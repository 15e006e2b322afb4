// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <string.h>

#include "array.h"
#include "calls.h"

/* Limit for the bytes of an image's code. A bit for each says whether a function starts there. */
#define MAX_CODE (1ULL << 30)

struct call {
	uint64_t place;
	uint32_t callee;
	uint8_t kind;
};

struct finder {
	const struct kcovdbg_image *image;
	uint64_t base, size;
	uint64_t *is_start; /* Bits. */
	struct call *calls;
	size_t count, room;
};

static const struct kcovdbg_part *part_at(const struct kcovdbg_image *image, uint64_t start)
{
	size_t low = 0, high = image->part_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (image->parts[middle].start < start)
			low = middle + 1;
		else
			high = middle;
	}
	return low < image->part_count && image->parts[low].start == start ? &image->parts[low] : NULL;
}

/* Mark the starts of functions. Code with a known role, such as callbacks and thunks, is not marked. */
static bool find_starts(struct finder *finder)
{
	const struct kcovdbg_image *image = finder->image;
	size_t i;

	if (!image->part_count)
		return true;
	finder->base = image->parts[0].start;
	finder->size = image->parts[image->part_count - 1].end - finder->base;
	if (finder->size > MAX_CODE)
		finder->size = MAX_CODE;
	finder->is_start = calloc(finder->size / 64 + 1, sizeof(*finder->is_start));
	if (!finder->is_start)
		return false;
	for (i = 0; i < image->part_count; i++) {
		uint64_t offset = image->parts[i].start - finder->base;

		if (offset < finder->size)
			finder->is_start[offset >> 6] |= 1ULL << (offset & 63);
	}
	for (i = 0; i < image->called_count; i++) {
		uint64_t offset = image->called[i].address - finder->base;

		if (offset < finder->size && image->called[i].role != KCOVDBG_ROLE_BOUNDARY)
			finder->is_start[offset >> 6] &= ~(1ULL << (offset & 63));
	}
	return true;
}

/* Add a call to an address if a function begins there. */
static bool add(struct finder *finder, uint64_t place, uint64_t target, uint64_t caller, uint8_t kind)
{
	uint64_t offset = target - finder->base;
	const struct kcovdbg_part *to;

	if (offset >= finder->size || !(finder->is_start[offset >> 6] >> (offset & 63) & 1))
		return true;
	to = part_at(finder->image, target);
	if (!to || to->function == caller)
		return true;
	if (!grow(&finder->calls, &finder->room, finder->count + 1, sizeof(*finder->calls)))
		return false;
	finder->calls[finder->count++] = (struct call){ place, to->function, kind };
	return true;
}

/* Code outside of functions is assembly, such as the entries of exceptions. It may hold addresses of functions that it calls. */
#define NO_FUNCTION UINT64_MAX

static bool look_at_code(struct finder *finder, const struct kcovdbg_area *area, uint64_t start, uint64_t stop,
			 uint64_t function)
{
	const struct kcovdbg_architecture *architecture = finder->image->architecture;
	const uint8_t *bytes = area->data + (start - area->address);
	size_t size = stop - start, at;
	struct kcovdbg_instruction one;

	for (at = 0; at < size; at += one.length) {
		uint64_t place = start + at, end;
		int i;

		if (architecture)
			kcovdbg_decode(architecture, bytes + at, size - at, &one);
		else
			kcovdbg_x86_decode(bytes + at, size - at, &one);
		end = place + one.length;
		if (one.flow == KCOVDBG_FLOW_CALL || one.flow == KCOVDBG_FLOW_JUMP || one.flow == KCOVDBG_FLOW_BRANCH) {
			uint8_t kind = one.flow == KCOVDBG_FLOW_CALL ? KCOVDBG_CALL_DIRECT : KCOVDBG_CALL_JUMP;

			if (function == NO_FUNCTION)
				kind = KCOVDBG_CALL_IN_CODE;
			if (!add(finder, place, end + one.displacement, function, kind))
				return false;
			continue;
		}
		/* The bytes before a function may be a hash, which is no address. */
		for (i = 0; function != NO_FUNCTION && i < one.operand_count; i++) {
			uint64_t value = (one.is_relative[i] ? end : 0) + one.operands[i];

			if (!add(finder, place, value, NO_FUNCTION, KCOVDBG_CALL_IN_CODE))
				return false;
		}
	}
	return true;
}

static bool look_at_text(struct finder *finder)
{
	const struct kcovdbg_image *image = finder->image;
	size_t text, i = 0;

	for (text = 0; text < image->text_count; text++) {
		const struct kcovdbg_area *area = &image->texts[text];
		uint64_t at = area->address, limit = area->address + area->size;

		for (; i < image->part_count && image->parts[i].start < limit; i++) {
			const struct kcovdbg_part *part = &image->parts[i];

			if (part->start < at || part->end > limit)
				continue;
			if (!look_at_code(finder, area, at, part->start, NO_FUNCTION) ||
			    !look_at_code(finder, area, part->start, part->end, part->function))
				return false;
			at = part->end;
		}
		if (!look_at_code(finder, area, at, limit, NO_FUNCTION))
			return false;
	}
	return true;
}

static bool look_at_data(struct finder *finder)
{
	const struct kcovdbg_image *image = finder->image;
	bool is_big_endian = image->architecture && image->architecture->is_big_endian;
	size_t i, at;

	for (i = 0; i < image->data_count; i++)
		for (at = -image->data[i].address & 7; at + 8 <= image->data[i].size; at += 8) {
			uint64_t word;

			memcpy(&word, image->data[i].data + at, sizeof(word));
			if (is_big_endian)
				word = __builtin_bswap64(word);
			if (!add(finder, image->data[i].address + at, word, NO_FUNCTION, KCOVDBG_CALL_IN_DATA))
				return false;
		}
	for (i = 0; i < image->pointer_count; i++)
		if (!add(finder, image->pointer_places[i], image->pointers[i], NO_FUNCTION, KCOVDBG_CALL_IN_DATA))
			return false;
	return true;
}

/* Sort the calls by the called functions. */
static bool order(const struct finder *finder, struct kcovdbg_calls *calls)
{
	size_t functions = finder->image->function_count, i;

	calls->count = finder->count;
	calls->ends = calloc(functions + 1, sizeof(*calls->ends));
	calls->places = malloc((finder->count + 1) * sizeof(*calls->places));
	calls->kinds = malloc(finder->count + 1);
	if (!calls->ends || !calls->places || !calls->kinds)
		return false;
	for (i = 0; i < finder->count; i++)
		calls->ends[finder->calls[i].callee + 1]++;
	for (i = 0; i < functions; i++)
		calls->ends[i + 1] += calls->ends[i];
	/* ends[] first has the start of each function's calls, and after the loop their end. */
	for (i = 0; i < finder->count; i++) {
		const struct call *call = &finder->calls[i];
		size_t to = calls->ends[call->callee]++;

		calls->places[to] = call->place;
		calls->kinds[to] = call->kind;
	}
	return true;
}

struct kcovdbg_calls *kcovdbg_calls_new(const struct kcovdbg_image *image)
{
	struct kcovdbg_calls *calls = calloc(1, sizeof(*calls));
	struct finder finder = { .image = image };

	if (!calls || !find_starts(&finder) || !look_at_text(&finder) || !look_at_data(&finder) || !order(&finder, calls)) {
		kcovdbg_calls_free(calls);
		calls = NULL;
	}
	free(finder.is_start);
	free(finder.calls);
	return calls;
}

void kcovdbg_calls_free(struct kcovdbg_calls *calls)
{
	if (!calls)
		return;
	free(calls->ends);
	free(calls->places);
	free(calls->kinds);
	free(calls);
}
