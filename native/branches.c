// SPDX-License-Identifier: LGPL-2.1-or-later
#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "branches.h"

/* The range of addresses that targets are looked for in, far more than a kernel's text: one bit for each byte, at most 128 MiB. */
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

/* Return the next 8 bytes as a word, in the byte order of the architecture; bytes beyond the end are 0. A form is shorter: it has
   the first ones. */
static inline uint64_t load(const struct kcovdbg_architecture *architecture, const unsigned char *text, size_t size, size_t i)
{
	uint64_t word = 0;

	memcpy(&word, text + i, size - i < sizeof(word) ? size - i : sizeof(word));
	return architecture->is_big_endian ? be64toh(word) : le64toh(word);
}

static inline bool fits(const struct kcovdbg_architecture *architecture, const struct kcovdbg_form *form, uint64_t *word)
{
	if (architecture->is_big_endian)
		*word >>= 64 - 8 * form->length;
	return (*word & form->mask) == form->value;
}

static uint64_t displacement(const struct kcovdbg_form *form, uint64_t word)
{
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < form->piece_count; i++) {
		const struct kcovdbg_piece *piece = &form->pieces[i];
		uint64_t part = word << (64 - piece->shift - piece->width);

		part = piece->is_signed ? (uint64_t)((int64_t)part >> (64 - piece->width)) : part >> (64 - piece->width);
		sum += part << piece->place;
	}
	return sum;
}

/* Whether an instruction is the last one of a form of several instructions. */
static bool is_part(const struct kcovdbg_architecture *architecture, const unsigned char *text, size_t size, size_t i,
		    size_t length)
{
	const struct kcovdbg_form *form = architecture->forms, *end = form + architecture->form_count;

	for (; form < end; form++)
		if (form->before && form->before <= i && (size_t)(form->length - form->before) == length) {
			uint64_t word = load(architecture, text, size, i - form->before);

			if (fits(architecture, form, &word))
				return true;
		}
	return false;
}

/* Return the form that the code at offset i has; NULL if it has none, or one of another kind. */
static const struct kcovdbg_form *form_at(const struct kcovdbg_architecture *architecture, uint64_t candidates,
					  const unsigned char *text, size_t size, size_t i, uint32_t kinds, uint64_t *word)
{
	uint64_t loaded = load(architecture, text, size, i);

	for (; candidates; candidates &= candidates - 1) {
		const struct kcovdbg_form *form = &architecture->forms[__builtin_ctzll(candidates)];

		*word = loaded;
		if (form->length > size - i || !fits(architecture, form, word))
			continue;
		return form->kind & kinds && (form->piece_count || !is_part(architecture, text, size, i, form->length)) ? form
															: NULL;
	}
	return NULL;
}

static bool add_branch(struct kcovdbg_search *search, uint64_t back, uint64_t target)
{
	if (!grow(&search->backs, &search->room[0], search->count + 1, sizeof(*search->backs)) ||
	    !grow(&search->led, &search->room[1], search->count + 1, sizeof(*search->led)))
		return false;
	search->backs[search->count] = back;
	search->led[search->count++] = target;
	return true;
}

void kcovdbg_searches_free(struct kcovdbg_search *searches, size_t count)
{
	size_t i;

	for (i = 0; i < count; i++) {
		free(searches[i].backs);
		free(searches[i].led);
	}
}

int kcovdbg_branches(const struct kcovdbg_architecture *architecture, const unsigned char *text, size_t size, uint64_t address,
		     size_t start, size_t stop, struct kcovdbg_search *searches, size_t count)
{
	size_t step = architecture->step, i, k, form, byte;
	uint32_t kinds = 0;
	/* By the first byte: the forms that can begin with it, 0 if none is of a wanted kind; and the bits that the wanted ones share. */
	uint64_t candidates[256], masks[256], values[256] = { 0 };

	for (i = 0; i < count; i++)
		kinds |= searches[i].kinds;
	for (byte = 0; byte < 256; byte++) {
		bool found = false;

		candidates[byte] = 0;
		masks[byte] = architecture->is_big_endian ? 0 : UINT64_MAX;
		for (form = 0; form < architecture->form_count && form < 64; form++) {
			const struct kcovdbg_form *of = &architecture->forms[form];
			unsigned int shift = architecture->is_big_endian ? 8 * (of->length - 1) : 0;

			if ((byte & of->mask >> shift & 0xff) == (of->value >> shift & 0xff)) {
				candidates[byte] |= 1ULL << form;
				if (!(of->kind & kinds))
					continue;
				masks[byte] &= of->mask & ~(found ? values[byte] ^ of->value : 0);
				values[byte] = of->value & masks[byte];
				found = true;
			}
		}
		if (!found)
			candidates[byte] = 0;
	}
	stop = stop < size ? stop : size;
	for (i = (start + step - 1) / step * step; i < stop; i += step) {
		const struct kcovdbg_form *found;
		uint64_t word, target = 0;

		byte = text[i];
		if (!candidates[byte] || (load(architecture, text, size, i) & masks[byte]) != values[byte] ||
		    !(found = form_at(architecture, candidates[byte], text, size, i, kinds, &word)))
			continue;
		if (found->piece_count)
			target = address + i + (architecture->is_from_end ? found->length : 0) + displacement(found, word);
		for (k = 0; k < count; k++) {
			const struct kcovdbg_targets *targets = found->piece_count ? searches[k].targets : NULL;

			if (found->kind & searches[k].kinds && (!targets || is_target(targets, target)) &&
			    !add_branch(&searches[k], address + i + found->length, target))
				return -1;
		}
	}
	return 0;
}

/* Bits of a form's kind, as in symbols/arch.py. */
enum { CALL = 1, JUMP = 2, INDIRECT_CALL = 8, INDIRECT_JUMP = 16, CONDITIONAL = 64, RETURN = 128, TRAP = 256, NEAR_JUMP = 512 };

static uint8_t flow_of(const struct kcovdbg_form *form)
{
	if (form->kind & CONDITIONAL)
		return form->piece_count ? KCOVDBG_FLOW_BRANCH : KCOVDBG_FLOW_MAY_LEAVE;
	switch (form->kind) {
	case CALL:
		return KCOVDBG_FLOW_CALL;
	case JUMP:
	case NEAR_JUMP:
		return KCOVDBG_FLOW_JUMP;
	case INDIRECT_CALL:
		return KCOVDBG_FLOW_INDIRECT_CALL;
	case INDIRECT_JUMP:
		return KCOVDBG_FLOW_INDIRECT_JUMP;
	case RETURN:
		return KCOVDBG_FLOW_RETURN;
	case TRAP:
		return KCOVDBG_FLOW_TRAP;
	}
	return KCOVDBG_FLOW_NEXT;
}

/* arm64: 4 bytes; s390: by the first two bits; RISC-V: by the last two bits of the first byte. */
static size_t length_of(const struct kcovdbg_architecture *architecture, uint8_t byte)
{
	if (architecture->step == 4)
		return 4;
	if (architecture->is_big_endian)
		return byte < 0x40 ? 2 : byte < 0xc0 ? 4 : 6;
	return (byte & 3) == 3 ? 4 : 2;
}

void kcovdbg_decode(const struct kcovdbg_architecture *architecture, const uint8_t *bytes, size_t size,
		    struct kcovdbg_instruction *instruction)
{
	size_t length = length_of(architecture, bytes[0]), i;
	uint64_t loaded = load(architecture, bytes, size, 0);

	*instruction = (struct kcovdbg_instruction){ .length = 1, .flow = KCOVDBG_FLOW_BAD };
	if (length > size)
		return;
	instruction->length = length;
	instruction->flow = KCOVDBG_FLOW_NEXT;
	for (i = 0; i < architecture->form_count; i++) {
		const struct kcovdbg_form *form = &architecture->forms[i];
		uint64_t word = loaded;

		if (form->length > size || !fits(architecture, form, &word))
			continue;
		instruction->flow = flow_of(form);
		instruction->length = form->length;
		instruction->displacement = displacement(form, word) - (architecture->is_from_end ? 0 : form->length);
		return;
	}
}
