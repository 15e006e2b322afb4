// SPDX-License-Identifier: LGPL-2.1-or-later
#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "branches.h"

/* Limit for the range in which targets are searched for, far above a kernel's text: at one bit for each byte, 128 MiB. */
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

	if (size - i >= sizeof(word))
		memcpy(&word, text + i, sizeof(word));
	else
		memcpy(&word, text + i, size - i);
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

/* Return the form of the code at offset i; NULL if it has no form of a wanted kind. */
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

/* Limit for the first bytes that several forms have, so that the second byte decides as well. */
#define MAX_NARROW 4
#define MAX_FORMS 64

/* The first bytes of branches of some kinds. */
struct beginnings {
	/* By the first byte: the forms that can begin with it, 0 if none is of a wanted kind; and the bits that the wanted ones share. */
	uint64_t candidates[256], masks[256], values[256];
	bool may_begin[256];
	int only; /* The only first byte; -1 if there are several. */
	/* For some first bytes, by the second one: the forms of those that the two can begin. */
	uint8_t narrow[256]; /* The number of the table, 0 for none. */
	size_t narrow_count;
	uint64_t by_second[MAX_NARROW + 1][256];
};

static uint64_t byte_of(uint64_t word, unsigned int index)
{
	return word >> 8 * index & 0xff;
}

static void look_at_second(const struct kcovdbg_architecture *architecture, struct beginnings *beginnings, size_t byte)
{
	uint64_t *forms = beginnings->by_second[++beginnings->narrow_count];
	size_t second;

	beginnings->narrow[byte] = beginnings->narrow_count;
	for (second = 0; second < 256; second++) {
		uint64_t left = beginnings->candidates[byte];

		forms[second] = 0;
		for (; left; left &= left - 1) {
			size_t i = __builtin_ctzll(left);
			const struct kcovdbg_form *form = &architecture->forms[i];

			if ((second & byte_of(form->mask, 1)) == byte_of(form->value, 1))
				forms[second] |= 1ULL << i;
		}
	}
}

static void list_beginnings(const struct kcovdbg_architecture *architecture, uint32_t kinds, struct beginnings *beginnings)
{
	size_t form, byte, count = 0;

	memset(beginnings, 0, sizeof(*beginnings));
	beginnings->only = -1;
	for (byte = 0; byte < 256; byte++) {
		bool found = false;

		beginnings->masks[byte] = architecture->is_big_endian ? 0 : UINT64_MAX;
		for (form = 0; form < architecture->form_count && form < MAX_FORMS; form++) {
			const struct kcovdbg_form *of = &architecture->forms[form];
			unsigned int first = architecture->is_big_endian ? of->length - 1 : 0;
			uint64_t *value = &beginnings->values[byte];

			if ((byte & byte_of(of->mask, first)) != byte_of(of->value, first))
				continue;
			beginnings->candidates[byte] |= 1ULL << form;
			if (!(of->kind & kinds))
				continue;
			beginnings->masks[byte] &= of->mask & ~(found ? *value ^ of->value : 0);
			*value = of->value & beginnings->masks[byte];
			found = true;
		}
		if (!found)
			beginnings->candidates[byte] = 0;
		beginnings->may_begin[byte] = found;
		if (found)
			beginnings->only = ++count == 1 ? (int)byte : -1;
		if (!architecture->is_big_endian && beginnings->narrow_count < MAX_NARROW &&
		    __builtin_popcountll(beginnings->candidates[byte]) > 2)
			look_at_second(architecture, beginnings, byte);
	}
}

/* Put for each form the searches that may find it, as bits. */
static void list_searches(const struct kcovdbg_architecture *architecture, const struct kcovdbg_search *searches, size_t count,
			  uint64_t *searches_of)
{
	size_t form, k;

	for (form = 0; form < architecture->form_count && form < MAX_FORMS; form++) {
		const struct kcovdbg_form *of = &architecture->forms[form];

		searches_of[form] = 0;
		for (k = 0; k < count && k < 64; k++) {
			bool is_empty = of->piece_count && searches[k].targets && !searches[k].targets->size;

			if (of->kind & searches[k].kinds && !is_empty)
				searches_of[form] |= 1ULL << k;
		}
	}
}

/* Return the next place at which a branch may begin, stop if there is none. */
static size_t find_beginning(const struct beginnings *beginnings, const unsigned char *text, size_t i, size_t stop, size_t step)
{
	if (beginnings->only >= 0 && step == 1) {
		const unsigned char *next = i < stop ? memchr(text + i, beginnings->only, stop - i) : NULL;

		return next ? (size_t)(next - text) : stop;
	}
	while (i < stop && !beginnings->may_begin[text[i]])
		i += step;
	return i;
}

int kcovdbg_branches(const struct kcovdbg_architecture *architecture, const unsigned char *text, size_t size, uint64_t address,
		     size_t start, size_t stop, struct kcovdbg_search *searches, size_t count)
{
	size_t step = architecture->step, i, k;
	struct beginnings beginnings;
	uint64_t searches_of[MAX_FORMS];
	uint32_t kinds = 0;

	for (k = 0; k < count; k++)
		kinds |= searches[k].kinds;
	list_beginnings(architecture, kinds, &beginnings);
	list_searches(architecture, searches, count, searches_of);
	stop = stop < size ? stop : size;
	i = (start + step - 1) / step * step;
	for (; (i = find_beginning(&beginnings, text, i, stop, step)) < stop; i += step) {
		const struct kcovdbg_form *found;
		uint64_t word, target = 0, candidates, left;
		unsigned char byte = text[i];

		candidates = beginnings.candidates[byte];
		if (beginnings.narrow[byte] && i + 1 < size)
			candidates = beginnings.by_second[beginnings.narrow[byte]][text[i + 1]];
		if ((load(architecture, text, size, i) & beginnings.masks[byte]) != beginnings.values[byte] ||
		    !(found = form_at(architecture, candidates, text, size, i, kinds, &word)))
			continue;
		left = searches_of[found - architecture->forms];
		if (left && found->piece_count)
			target = address + i + (architecture->is_from_end ? found->length : 0) + displacement(found, word);
		for (; left; left &= left - 1) {
			struct kcovdbg_search *search = &searches[__builtin_ctzll(left)];
			const struct kcovdbg_targets *targets = found->piece_count ? search->targets : NULL;

			if ((!targets || is_target(targets, target)) &&
			    !add_branch(search, address + i + found->length, target))
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
