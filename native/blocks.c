// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <string.h>

#include "arm64_switch.h"
#include "array.h"
#include "blocks.h"
#include "x86_decoder.h"

#define NONE SIZE_MAX
/* Bytes of a stub that are followed. */
#define MAX_STUB 64

/* Beside the length of an instruction: the next one follows, and it has no constant. */
#define PLAIN 0x80

struct addresses {
	uint64_t *items;
	size_t count, room;
};

/* A jump out of a function, to the start of another. */
struct tail_jump {
	uint32_t from, to;
};

struct kcovdbg_code {
	const struct kcovdbg_image *image;
	uint64_t *
		buckets; /* For each range of so many addresses, from that of the first part: the first part that ends in it or later. */
	size_t bucket_count;
	unsigned int bucket_shift;
	uint32_t *function_parts; /* The parts of each function, ascending. */
	uint32_t *part_ends;	  /* Where those of each function end. */
	uint8_t *flags;		  /* The flags of each function. */
	uint8_t *lengths;	  /* Those of the instructions of all parts, with PLAIN. */
	size_t length_count;
	size_t *part_lengths;	  /* Where those of each part begin; NONE for a part that is outside of the text. */
	struct addresses entries; /* Inside functions, from other functions or other code. */
	struct addresses pointed; /* Inside functions, in data. */
	struct tail_jump *tails;
	size_t tail_count, tail_room;
};

static bool add_address(struct addresses *addresses, uint64_t address)
{
	if (!grow(&addresses->items, &addresses->room, addresses->count + 1, sizeof(*addresses->items)))
		return false;
	addresses->items[addresses->count++] = address;
	return true;
}

static int compare_addresses(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return (a > b) - (a < b);
}

/* The first of ascending items that is not below an address; each begins with its own. */
static size_t lower_bound(const void *items, size_t count, size_t size, uint64_t address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		uint64_t found;

		memcpy(&found, (const char *)items + middle * size, sizeof(found));
		if (found < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool has_address(const uint64_t *items, size_t count, uint64_t address)
{
	size_t i = lower_bound(items, count, sizeof(*items), address);

	return i < count && items[i] == address;
}

/* As many buckets as there are parts, or less. */
static bool make_buckets(struct kcovdbg_code *code)
{
	const struct kcovdbg_image *image = code->image;
	size_t i, part = 0;
	uint64_t size;

	if (!image->part_count)
		return true;
	size = image->parts[image->part_count - 1].end - image->parts[0].start;
	while (size >> code->bucket_shift > image->part_count)
		code->bucket_shift++;
	code->bucket_count = (size >> code->bucket_shift) + 1;
	code->buckets = malloc((code->bucket_count + 1) * sizeof(*code->buckets));
	if (!code->buckets)
		return false;
	for (i = 0; i < code->bucket_count; i++) {
		uint64_t start = image->parts[0].start + ((uint64_t)i << code->bucket_shift);

		/* Some are empty. */
		while (part < image->part_count && image->parts[part].end <= start && image->parts[part].start < start)
			part++;
		code->buckets[i] = part;
	}
	code->buckets[i] = image->part_count;
	return true;
}

static const struct kcovdbg_part *part_at(const struct kcovdbg_code *code, uint64_t address)
{
	const struct kcovdbg_part *parts = code->image->parts;
	size_t bucket, i, end;

	if (!code->bucket_count || address < parts[0].start)
		return NULL;
	bucket = (address - parts[0].start) >> code->bucket_shift;
	if (bucket >= code->bucket_count)
		return NULL;
	end = code->buckets[bucket + 1];
	end += end < code->image->part_count;
	for (i = code->buckets[bucket]; i < end && parts[i].end <= address && parts[i].start != address; i++)
		;
	return i < end && parts[i].start <= address ? &parts[i] : NULL;
}

/* Whether a symbol is at an address of a part; NULL where it is in none. */
static bool is_start_in(const struct kcovdbg_code *code, const struct kcovdbg_part *part, uint64_t address)
{
	return (part && part->start == address) || has_address(code->image->starts, code->image->start_count, address);
}

static bool is_start(const struct kcovdbg_code *code, uint64_t address)
{
	return is_start_in(code, part_at(code, address), address);
}

static const struct kcovdbg_area *area_at(const struct kcovdbg_area *areas, size_t count, uint64_t address)
{
	size_t i = lower_bound(areas, count, sizeof(*areas), address);

	if (i < count && areas[i].address == address)
		return areas[i].size ? &areas[i] : NULL;
	return i && address - areas[i - 1].address < areas[i - 1].size ? &areas[i - 1] : NULL;
}

static uint32_t role_of(const struct kcovdbg_code *code, uint64_t target)
{
	const struct kcovdbg_called *called = code->image->called;
	size_t i = lower_bound(called, code->image->called_count, sizeof(*called), target);

	return i < code->image->called_count && called[i].address == target ? called[i].role : 0;
}

static void decode(const struct kcovdbg_code *code, const uint8_t *bytes, size_t size, struct kcovdbg_instruction *instruction)
{
	if (code->image->architecture)
		kcovdbg_decode(code->image->architecture, bytes, size, instruction);
	else
		kcovdbg_x86_decode(bytes, size, instruction);
}

static bool is_direct(uint8_t flow)
{
	return flow == KCOVDBG_FLOW_CALL || flow == KCOVDBG_FLOW_JUMP || flow == KCOVDBG_FLOW_BRANCH;
}

/* Whether the next instruction never follows. */
static bool is_last(uint8_t flow)
{
	return flow == KCOVDBG_FLOW_JUMP || flow == KCOVDBG_FLOW_RETURN || flow == KCOVDBG_FLOW_INDIRECT_JUMP ||
	       flow == KCOVDBG_FLOW_BAD;
}

/* Note where code of no function leads to. */
static bool survey_gap(struct kcovdbg_code *code, uint64_t address, const uint8_t *bytes, size_t size)
{
	struct kcovdbg_instruction one;
	size_t at;

	for (at = 0; at < size; at += one.length) {
		const struct kcovdbg_part *to;
		uint64_t target;

		/* Most bytes between functions are nops or traps of one byte each. */
		while (!code->image->architecture && at < size && (bytes[at] == 0x90 || bytes[at] == 0xcc))
			at++;
		if (at == size)
			break;
		decode(code, bytes + at, size - at, &one);
		if (!is_direct(one.flow))
			continue;
		target = address + at + one.length + one.displacement;
		to = part_at(code, target);
		if (to && !is_start_in(code, to, target) && !add_address(&code->entries, target))
			return false;
	}
	return true;
}

/* Note where a part of a function leads to outside of the function, and whether it returns. */
static bool survey_part(struct kcovdbg_code *code, const struct kcovdbg_part *part, const uint8_t *bytes)
{
	size_t size = part->end - part->start, at;
	struct kcovdbg_instruction one;
	uint8_t *flags = &code->flags[part->function];
	bool falls = true;

	code->part_lengths[part - code->image->parts] = code->length_count;
	for (at = 0; at < size; at += one.length) {
		uint64_t target;
		const struct kcovdbg_part *to;
		bool starts, is_plain;

		decode(code, bytes + at, size - at, &one);
		is_plain = one.flow == KCOVDBG_FLOW_NEXT && !one.operand_count;
		code->lengths[code->length_count++] = one.length | (is_plain ? PLAIN : 0);
		if (is_plain) {
			falls = true;
			continue;
		}
		if (one.flow == KCOVDBG_FLOW_RETURN || one.flow == KCOVDBG_FLOW_INDIRECT_JUMP || one.flow == KCOVDBG_FLOW_BAD)
			*flags &= ~KCOVDBG_FUNCTION_NO_RETURN;
		/* If nothing follows a call, the function that it calls never returns. */
		if (one.flow != KCOVDBG_FLOW_PADDING && one.flow != KCOVDBG_FLOW_TRAP)
			falls = !is_last(one.flow) && one.flow != KCOVDBG_FLOW_CALL;
		if (!is_direct(one.flow))
			continue;
		target = part->start + at + one.length + one.displacement;
		if (target >= part->start && target < part->end && one.flow != KCOVDBG_FLOW_CALL)
			continue;
		to = part_at(code, target);
		starts = is_start_in(code, to, target);
		if (to && !starts && (to->function != part->function || one.flow == KCOVDBG_FLOW_CALL) &&
		    !add_address(&code->entries, target))
			return false;
		if (one.flow == KCOVDBG_FLOW_CALL || (to && to->function == part->function))
			continue;
		if (!to || !starts || role_of(code, target)) {
			*flags &= ~KCOVDBG_FUNCTION_NO_RETURN;
			continue;
		}
		if (!grow(&code->tails, &code->tail_room, code->tail_count + 1, sizeof(*code->tails)))
			return false;
		code->tails[code->tail_count++] = (struct tail_jump){ part->function, to->function };
	}
	if (falls)
		*flags &= ~KCOVDBG_FUNCTION_NO_RETURN;
	return true;
}

static bool survey_text(struct kcovdbg_code *code, const struct kcovdbg_area *text)
{
	const struct kcovdbg_part *parts = code->image->parts;
	uint64_t at = text->address, end = text->address + text->size;
	size_t i = lower_bound(parts, code->image->part_count, sizeof(*parts), at);

	for (; i < code->image->part_count && parts[i].end <= end; i++) {
		if (!survey_gap(code, at, text->data + (at - text->address), parts[i].start - at) ||
		    !survey_part(code, &parts[i], text->data + (parts[i].start - text->address)))
			return false;
		at = parts[i].end;
	}
	return survey_gap(code, at, text->data + (at - text->address), end - at);
}

static bool add_pointer(struct kcovdbg_code *code, uint64_t pointer)
{
	return is_start(code, pointer) || !part_at(code, pointer) || add_address(&code->pointed, pointer);
}

static bool survey_data(struct kcovdbg_code *code)
{
	const struct kcovdbg_image *image = code->image;
	uint64_t low = image->part_count ? image->parts[0].start : 0;
	uint64_t high = image->part_count ? image->parts[image->part_count - 1].end : 0;
	size_t i, at;

	for (i = 0; i < image->data_count; i++)
		for (at = -image->data[i].address & 7; at + 8 <= image->data[i].size; at += 8) {
			uint64_t word;

			memcpy(&word, image->data[i].data + at, sizeof(word));
			if (image->architecture && image->architecture->is_big_endian)
				word = __builtin_bswap64(word);
			if (word >= low && word < high && !add_pointer(code, word))
				return false;
		}
	for (i = 0; i < image->pointer_count; i++)
		if (!add_pointer(code, image->pointers[i]))
			return false;
	return true;
}

/* A function whose ways all lead to functions that never return does not return either. */
static void settle_returns(struct kcovdbg_code *code)
{
	const struct kcovdbg_image *image = code->image;
	bool has_changed = true;
	size_t i;

	for (i = 0; i < image->function_count; i++)
		code->flags[i] |= image->function_flags[i] & KCOVDBG_FUNCTION_NO_RETURN;
	for (i = 0; i < image->fact_count; i++) {
		const struct kcovdbg_fact *fact = &image->facts[i];
		const struct kcovdbg_part *from = part_at(code, fact->address), *to;

		if (!from || fact->kind != KCOVDBG_FACT_LEADS)
			continue;
		to = fact->value ? part_at(code, fact->value) : NULL;
		if (!to || to->function != from->function)
			code->flags[from->function] &= ~KCOVDBG_FUNCTION_NO_RETURN;
	}
	while (has_changed) {
		has_changed = false;
		for (i = 0; i < code->tail_count; i++) {
			struct tail_jump tail = code->tails[i];

			if (code->flags[tail.from] & ~code->flags[tail.to] & KCOVDBG_FUNCTION_NO_RETURN) {
				code->flags[tail.from] &= ~KCOVDBG_FUNCTION_NO_RETURN;
				has_changed = true;
			}
		}
	}
}

static void sort_addresses(struct addresses *addresses)
{
	size_t i, count = 0;

	if (addresses->count)
		qsort(addresses->items, addresses->count, sizeof(*addresses->items), compare_addresses);
	for (i = 0; i < addresses->count; i++)
		if (!i || addresses->items[i] != addresses->items[i - 1])
			addresses->items[count++] = addresses->items[i];
	addresses->count = count;
}

/* Make room for an instruction at each byte of the parts: pages that are not used take no memory. */
static bool make_lengths(struct kcovdbg_code *code)
{
	const struct kcovdbg_image *image = code->image;
	size_t total = 0, i;

	code->part_lengths = malloc((image->part_count + 1) * sizeof(*code->part_lengths));
	if (!code->part_lengths)
		return false;
	for (i = 0; i < image->part_count; i++) {
		total += image->parts[i].end - image->parts[i].start;
		code->part_lengths[i] = NONE;
	}
	code->lengths = malloc(total + 1);
	return code->lengths;
}

struct kcovdbg_code *kcovdbg_code_new(const struct kcovdbg_image *image)
{
	struct kcovdbg_code *code = calloc(1, sizeof(*code));
	uint32_t *next = calloc(image->function_count + 1, sizeof(*next));
	bool is_done = code && next;
	size_t i;

	if (is_done) {
		code->image = image;
		code->function_parts = malloc((image->part_count + 1) * sizeof(*code->function_parts));
		code->part_ends = calloc(image->function_count + 1, sizeof(*code->part_ends));
		code->flags = malloc(image->function_count + 1);
		is_done = make_buckets(code) && make_lengths(code) && code->function_parts && code->part_ends && code->flags;
	}
	if (is_done) {
		for (i = 0; i < image->part_count; i++)
			next[image->parts[i].function + 1]++;
		for (i = 0; i < image->function_count; i++) {
			next[i + 1] += next[i];
			code->part_ends[i] = next[i + 1];
			code->flags[i] = image->function_flags[i] | KCOVDBG_FUNCTION_NO_RETURN;
		}
		for (i = 0; i < image->part_count; i++)
			code->function_parts[next[image->parts[i].function]++] = i;
	}
	for (i = 0; is_done && i < image->text_count; i++)
		is_done = survey_text(code, &image->texts[i]);
	is_done = is_done && survey_data(code);
	free(next);
	if (!is_done) {
		kcovdbg_code_free(code);
		return NULL;
	}
	sort_addresses(&code->entries);
	sort_addresses(&code->pointed);
	settle_returns(code);
	return code;
}

void kcovdbg_code_free(struct kcovdbg_code *code)
{
	if (!code)
		return;
	free(code->buckets);
	free(code->function_parts);
	free(code->part_ends);
	free(code->flags);
	free(code->lengths);
	free(code->part_lengths);
	free(code->entries.items);
	free(code->pointed.items);
	free(code->tails);
	free(code);
}

enum {
	MARK_LEADER = 1,
	MARK_ENTRY = 2,
	MARK_END = 4,
	MARK_PATCHED = 8,
	MARK_WARNING = 16,
	MARK_BUG = 32,
	MARK_EDGE = 64, /* An entry of the kernel's tables has edges from it. */
	MARK_PATCH_END = 128,
};

struct instruction {
	uint64_t address, target, operands[2];
	uint8_t length, flow, marks, role, operand_count;
	bool sets_register; /* To its constant, or the address that it names. */
};

struct block {
	size_t first, last; /* Instructions. */
	uint8_t flags;
	bool has_edges; /* Whether edges lead to it. */
	size_t edges, edge_end;
};

struct place {
	uint32_t file, line;
};

/* The place that was put last, and that of the file before that. */
struct last_places {
	struct place last, other;
};

/* A line that code of a block was inlined at. */
struct call {
	struct place place;
	uint32_t offset; /* In the block: of its first code there. */
	bool begins;	 /* Whether a statement of that code begins in the block. */
};

/* A line of a block. */
struct pair {
	uint32_t file, line;
	uint32_t offset; /* In the block: of its first code. */
	uint32_t flags;
};

/* What a thread needs; the arrays are used again for each function. */
struct builder {
	const struct kcovdbg_code *code;
	const struct kcovdbg_rows *rows;
	struct kcovdbg_bytes_out *out;
	uint32_t function;
	uint8_t flags;
	bool has_callbacks, has_indirect_jump, has_interrupt_return;
	struct instruction *instructions;
	size_t instruction_count, instruction_room;
	/* For each byte of the function, part by part, the instruction that begins there; of the others whatever was there before. */
	uint32_t *index;
	size_t index_room;
	struct block *blocks;
	size_t block_count, block_room;
	uint32_t *edges;
	size_t edge_count, edge_room;
	uint32_t *block_of; /* The block of each instruction. */
	size_t block_of_room;
	uint64_t *targets; /* Of the switch that was read last. */
	size_t target_count, target_room;
	struct pair *pairs; /* The lines of a block. */
	size_t pair_count, pair_room;
	/* The lines that code of a block was inlined at, by where that begins, outermost first, and those of the last block. */
	struct call *calls, *last_calls;
	size_t call_count, call_room, last_call_count, last_call_room;
	uint64_t *begun; /* Where code of a block is whose statement begins in it. */
	size_t begun_count, begun_room;
	size_t row, inlined; /* Where rows and what was inlined are looked for first. */
	struct last_places last_line, last_call;
};

/* Return where an address is in the function, whose parts follow each other; NONE if it is in none of them. Most have one or two. */
static size_t offset_in(const struct builder *builder, uint64_t address)
{
	const struct kcovdbg_code *code = builder->code;
	uint32_t i = builder->function ? code->part_ends[builder->function - 1] : 0;
	size_t before = 0;

	for (; i < code->part_ends[builder->function]; i++) {
		const struct kcovdbg_part *part = &code->image->parts[code->function_parts[i]];

		if (address >= part->start && address < part->end)
			return before + (address - part->start);
		before += part->end - part->start;
	}
	return NONE;
}

static bool is_inside(const struct builder *builder, uint64_t address)
{
	return offset_in(builder, address) != NONE;
}

static size_t index_of(const struct builder *builder, uint64_t address)
{
	size_t at = offset_in(builder, address), i;

	if (at == NONE || at >= builder->index_room)
		return NONE;
	i = builder->index[at];
	return i < builder->instruction_count && builder->instructions[i].address == address ? i : NONE;
}

/* Return the instruction that an address is in. */
static size_t containing(const struct builder *builder, uint64_t address)
{
	size_t i = lower_bound(builder->instructions, builder->instruction_count, sizeof(*builder->instructions), address);

	if (i < builder->instruction_count && builder->instructions[i].address == address)
		return i;
	return i && address - builder->instructions[i - 1].address < builder->instructions[i - 1].length ? i - 1 : NONE;
}

/* Make room for so many bytes; those that are new have an instruction that is checked before it is believed. */
static bool make_index(struct builder *builder, size_t size)
{
	size_t room = builder->index_room;

	if (!grow(&builder->index, &builder->index_room, size, sizeof(*builder->index)))
		return false;
	memset(builder->index + room, 0, (builder->index_room - room) * sizeof(*builder->index));
	return true;
}

/* Whether an instruction of x86-64 moves a constant into a register, or an address that it names. */
static bool sets_register(const uint8_t *bytes, size_t size)
{
	/* The prefix REX. */
	size_t at = (bytes[0] & 0xf0) == 0x40;

	if (at + 1 >= size)
		return false;
	return (bytes[at] & 0xf8) == 0xb8 || bytes[at] == 0x8d || (bytes[at] == 0xc7 && bytes[at + 1] >= 0xc0);
}

static bool decode_part(struct builder *builder, const struct kcovdbg_part *part)
{
	const struct kcovdbg_image *image = builder->code->image;
	const struct kcovdbg_area *text = area_at(image->texts, image->text_count, part->start);
	const uint8_t *bytes, *length = builder->code->lengths;
	size_t size = part->end - part->start, first_length = builder->code->part_lengths[part - image->parts], at;
	size_t before = offset_in(builder, part->start);
	struct instruction *to;

	if (!text || part->end - text->address > text->size || first_length == NONE)
		return true;
	bytes = text->data + (part->start - text->address);
	length += first_length;
	if (!grow(&builder->instructions, &builder->instruction_room, builder->instruction_count + size,
		  sizeof(*builder->instructions)) ||
	    !make_index(builder, before + size))
		return false;
	for (at = 0; at < size; at += to->length) {
		struct kcovdbg_instruction one;
		uint64_t end;
		int i;

		to = &builder->instructions[builder->instruction_count];
		builder->index[before + at] = builder->instruction_count++;
		*to = (struct instruction){ .address = part->start + at, .length = *length & ~PLAIN };
		if (!at)
			to->marks |= MARK_LEADER;
		if (*length++ & PLAIN)
			continue;
		decode(builder->code, bytes + at, size - at, &one);
		end = part->start + at + one.length;
		to->flow = one.flow;
		to->operand_count = one.operand_count;
		to->sets_register = one.operand_count && sets_register(bytes + at, one.length);
		/* iret */
		builder->has_interrupt_return |= one.flow == KCOVDBG_FLOW_RETURN && bytes[at + one.length - 1] == 0xcf;
		for (i = 0; i < one.operand_count; i++)
			to->operands[i] = (one.is_relative[i] ? end : 0) + one.operands[i];
		if (is_direct(one.flow)) {
			to->target = end + one.displacement;
			if (!is_inside(builder, to->target))
				to->role = role_of(builder->code, to->target);
		}
		if (to->role == KCOVDBG_ROLE_INDIRECT)
			to->flow = to->flow == KCOVDBG_FLOW_CALL ? KCOVDBG_FLOW_INDIRECT_CALL : KCOVDBG_FLOW_INDIRECT_JUMP;
		else if (to->role == KCOVDBG_ROLE_RETURN && to->flow == KCOVDBG_FLOW_JUMP)
			to->flow = KCOVDBG_FLOW_RETURN;
		builder->has_callbacks |= to->role == KCOVDBG_ROLE_CALLBACK;
		builder->has_indirect_jump |= to->flow == KCOVDBG_FLOW_INDIRECT_JUMP;
		if (to->flow == KCOVDBG_FLOW_BAD)
			builder->flags |= KCOVDBG_FUNCTION_VOID;
	}
	return true;
}

/* Mark an instruction as the start of a block; false if there is none at the address. */
static bool mark(struct builder *builder, uint64_t address, uint8_t marks)
{
	size_t i = index_of(builder, address);

	if (i == NONE)
		return false;
	builder->instructions[i].marks |= marks;
	return true;
}

/* Mark what ascending addresses of a part name. */
static void mark_all(struct builder *builder, const struct kcovdbg_part *part, const uint64_t *items, size_t count,
		     uint8_t marks)
{
	size_t i = lower_bound(items, count, sizeof(*items), part->start);

	for (; i < count && items[i] < part->end; i++)
		mark(builder, items[i], marks);
}

static void mark_facts(struct builder *builder, const struct kcovdbg_part *part)
{
	const struct kcovdbg_image *image = builder->code->image;
	const struct kcovdbg_fact *fact =
		image->facts + lower_bound(image->facts, image->fact_count, sizeof(*fact), part->start);

	for (; fact < image->facts + image->fact_count && fact->address < part->end; fact++) {
		size_t i = containing(builder, fact->address);
		struct instruction *one;

		if (i == NONE)
			continue;
		one = &builder->instructions[i];
		switch (fact->kind) {
		case KCOVDBG_FACT_WARNING:
			one->marks |= MARK_WARNING;
			break;
		case KCOVDBG_FACT_BUG:
			one->marks |= MARK_BUG;
			break;
		case KCOVDBG_FACT_PATCHED:
			one->marks |= MARK_LEADER;
			for (; i < builder->instruction_count && builder->instructions[i].address < fact->value; i++)
				builder->instructions[i].marks |= MARK_PATCHED;
			builder->instructions[i - 1].marks |= MARK_END | MARK_PATCH_END;
			break;
		default:
			one->marks |= MARK_END | MARK_EDGE;
			mark(builder, fact->value, MARK_LEADER);
		}
	}
}

/*
 * Whether a constant of the function is the address of a table of offsets of 4 bytes to its code: a switch by such a table has edges
 * that are not known.
 */
static bool has_offset_table(const struct builder *builder)
{
	const struct kcovdbg_image *image = builder->code->image;
	size_t i;
	int k;

	for (i = 0; i < builder->instruction_count; i++)
		for (k = 0; k < builder->instructions[i].operand_count; k++) {
			uint64_t at = builder->instructions[i].operands[k];
			const struct kcovdbg_area *area = area_at(image->data, image->data_count, at);
			int32_t offset;

			if (!area || area->size - (at - area->address) < sizeof(offset))
				continue;
			memcpy(&offset, area->data + (at - area->address), sizeof(offset));
			if (offset && index_of(builder, at + offset) != NONE)
				return true;
		}
	return false;
}

static int64_t read_entry(const uint8_t *data, size_t size)
{
	int8_t byte;
	int16_t half;
	int32_t word;

	switch (size) {
	case sizeof(byte):
		memcpy(&byte, data, sizeof(byte));
		return byte;
	case sizeof(half):
		memcpy(&half, data, sizeof(half));
		return half;
	default:
		memcpy(&word, data, sizeof(word));
		return word;
	}
}

/*
 * Read where a jump of arm64 by a table leads to, and more: the end of the table is not known, and entries are taken as long as they
 * lead into the function. There is no target where the table is not found, or where code jumps between the instructions that find it.
 * False when out of memory.
 */
static bool read_switch(struct builder *builder, size_t index)
{
	const struct kcovdbg_image *image = builder->code->image;
	const struct instruction *jump = &builder->instructions[index];
	const struct kcovdbg_area *text = area_at(image->texts, image->text_count, jump->address), *data;
	struct kcovdbg_arm64_switch found;
	uint64_t end = jump->address;
	size_t at;

	builder->target_count = 0;
	if (!text || !kcovdbg_arm64_find_switch(text->data, jump->address - text->address, text->address, &found))
		return true;
	/* Each part of the function begins with a leader. */
	for (; jump->address > text->address + found.first; jump--)
		if (jump->marks & MARK_LEADER)
			return true;
	data = area_at(image->data, image->data_count, found.table);
	if (!data)
		return true;
	for (at = found.table - data->address; at + found.entry_size <= data->size; at += found.entry_size) {
		uint64_t target = found.base + 4 * read_entry(data->data + at, found.entry_size);

		/* What leads between these instructions is no entry: it is behind the table's end. */
		if (index_of(builder, target) == NONE || (target > text->address + found.first && target <= end))
			break;
		if (!grow(&builder->targets, &builder->target_room, builder->target_count + 1, sizeof(*builder->targets)))
			return false;
		builder->targets[builder->target_count++] = target;
	}
	return true;
}

/* Mark what the switches of a function of arm64 lead to; it is void if a jump through a register is no switch that can be read. */
static bool mark_switches(struct builder *builder)
{
	size_t i, k;

	for (i = 0; i < builder->instruction_count; i++) {
		if (builder->instructions[i].flow != KCOVDBG_FLOW_INDIRECT_JUMP)
			continue;
		if (!read_switch(builder, i))
			return false;
		if (!builder->target_count)
			builder->flags |= KCOVDBG_FUNCTION_VOID;
		for (k = 0; k < builder->target_count; k++)
			mark(builder, builder->targets[k], MARK_LEADER);
	}
	return true;
}

/*
 * Jumps and returns may lead to what instructions name: an interrupt's return, to an address that was pushed. Compiled code that has neither an
 * interrupt's return nor a jump through a register hands an address in a register to a function, as lockdep is told where a lock is taken.
 */
static void mark_constants(struct builder *builder)
{
	bool hands_on = builder->has_callbacks && !builder->has_indirect_jump && !builder->has_interrupt_return;
	size_t i;
	int k;

	for (i = 0; i < builder->instruction_count; i++) {
		if (hands_on && builder->instructions[i].sets_register)
			continue;
		for (k = 0; k < builder->instructions[i].operand_count; k++)
			mark(builder, builder->instructions[i].operands[k], MARK_LEADER | MARK_ENTRY);
	}
}

static void mark_jumps(struct builder *builder)
{
	size_t i;

	for (i = 0; i < builder->instruction_count; i++) {
		struct instruction *one = &builder->instructions[i];
		bool is_own = is_direct(one->flow) && !one->role && is_inside(builder, one->target);

		/* An edge into the middle of an instruction is a sign of code that was decoded wrongly. */
		if (is_own && !mark(builder, one->target, MARK_LEADER))
			builder->flags |= KCOVDBG_FUNCTION_VOID;
		/* Code that is replaced is one block. */
		if (one->marks & MARK_PATCHED)
			continue;
		switch (one->flow) {
		case KCOVDBG_FLOW_NEXT:
		case KCOVDBG_FLOW_PADDING:
			break;
		case KCOVDBG_FLOW_CALL:
			if (one->role != KCOVDBG_ROLE_CALLBACK)
				one->marks |= MARK_END;
			else if (builder->flags & KCOVDBG_FUNCTION_VOID)
				one->marks |= MARK_LEADER;
			break;
		default:
			one->marks |= MARK_END;
		}
	}
}

static bool add_block(struct builder *builder, size_t first, size_t last)
{
	size_t i;

	if (!grow(&builder->blocks, &builder->block_room, builder->block_count + 1, sizeof(*builder->blocks)))
		return false;
	for (i = first; i <= last; i++)
		builder->block_of[i] = builder->block_count;
	builder->blocks[builder->block_count++] = (struct block){ .first = first, .last = last };
	return true;
}

static bool split(struct builder *builder)
{
	struct instruction *instructions = builder->instructions;
	size_t i, first = 0, count = builder->instruction_count;

	builder->block_count = 0;
	if (!grow(&builder->block_of, &builder->block_of_room, count, sizeof(*builder->block_of)))
		return false;
	for (i = 0; i < count; i++) {
		bool is_end = i + 1 == count || instructions[i].marks & MARK_END || instructions[i + 1].marks & MARK_LEADER;
		bool is_inside = instructions[i].marks & MARK_PATCHED && !(instructions[i].marks & MARK_PATCH_END);

		if (!is_end || (is_inside && i + 1 < count))
			continue;
		if (!add_block(builder, first, i))
			return false;
		first = i + 1;
	}
	return true;
}

static bool add_edge(struct builder *builder, struct block *from, size_t to)
{
	size_t i;

	for (i = from->edges; i < builder->edge_count; i++)
		if (builder->edges[i] == to)
			return true;
	if (!grow(&builder->edges, &builder->edge_room, builder->edge_count + 1, sizeof(*builder->edges)))
		return false;
	builder->edges[builder->edge_count++] = to;
	return true;
}

/* Add the edges of a jump to a stub, up to the first instruction that the next one doesn't follow. */
static bool add_stub(struct builder *builder, struct block *block, const struct kcovdbg_area *stub, uint64_t at)
{
	uint64_t end = stub->address + stub->size < at + MAX_STUB ? stub->address + stub->size : at + MAX_STUB;
	struct kcovdbg_instruction one;

	for (; at < end; at += one.length) {
		uint64_t target;
		size_t to;

		decode(builder->code, stub->data + (at - stub->address), end - at, &one);
		target = at + one.length + one.displacement;
		if (one.flow == KCOVDBG_FLOW_JUMP || one.flow == KCOVDBG_FLOW_BRANCH) {
			to = index_of(builder, target);
			if (to == NONE)
				block->flags |= KCOVDBG_BLOCK_EXIT;
			else if (!add_edge(builder, block, builder->block_of[to]))
				return false;
		}
		if (is_last(one.flow) && one.flow != KCOVDBG_FLOW_JUMP)
			block->flags |= KCOVDBG_BLOCK_EXIT;
		if (is_last(one.flow))
			return true;
	}
	block->flags |= KCOVDBG_BLOCK_EXIT;
	return true;
}

/* Add the edge of a jump, or note that it leaves the function. */
static bool add_jump(struct builder *builder, struct block *block, uint64_t target)
{
	const struct kcovdbg_image *image = builder->code->image;
	size_t to = index_of(builder, target);
	const struct kcovdbg_area *stub;

	if (to != NONE)
		return add_edge(builder, block, builder->block_of[to]);
	stub = area_at(image->stubs, image->stub_count, target);
	if (stub)
		return add_stub(builder, block, stub, target);
	block->flags |= KCOVDBG_BLOCK_EXIT;
	return true;
}

/* Stubs lead to places that begin blocks. */
static void mark_stub(struct builder *builder, uint64_t at)
{
	const struct kcovdbg_image *image = builder->code->image;
	const struct kcovdbg_area *stub = area_at(image->stubs, image->stub_count, at);
	struct kcovdbg_instruction one = { 0 };
	uint64_t end;

	if (!stub)
		return;
	end = stub->address + stub->size < at + MAX_STUB ? stub->address + stub->size : at + MAX_STUB;
	for (; at < end && !is_last(one.flow); at += one.length) {
		decode(builder->code, stub->data + (at - stub->address), end - at, &one);
		if (one.flow == KCOVDBG_FLOW_JUMP || one.flow == KCOVDBG_FLOW_BRANCH)
			mark(builder, at + one.length + one.displacement, MARK_LEADER);
	}
}

static void mark_stubs(struct builder *builder)
{
	const struct kcovdbg_image *image = builder->code->image;
	size_t i;

	for (i = 0; image->stub_count && i < builder->instruction_count; i++) {
		struct instruction *one = &builder->instructions[i];

		if ((one->flow == KCOVDBG_FLOW_JUMP || one->flow == KCOVDBG_FLOW_BRANCH) && !is_inside(builder, one->target))
			mark_stub(builder, one->target);
	}
}

/* Add the edges that facts about the instructions of a block have. */
static bool add_facts(struct builder *builder, struct block *block, bool *falls)
{
	const struct kcovdbg_image *image = builder->code->image;
	const struct instruction *last = &builder->instructions[block->last];
	uint64_t start = last->marks & MARK_PATCHED ? builder->instructions[block->first].address : last->address;
	const struct kcovdbg_fact *fact = image->facts + lower_bound(image->facts, image->fact_count, sizeof(*fact), start);

	for (; fact < image->facts + image->fact_count && fact->address < last->address + last->length; fact++) {
		if (fact->kind == KCOVDBG_FACT_EDGE)
			*falls = true;
		if (fact->kind == KCOVDBG_FACT_LEADS && !fact->value)
			block->flags |= KCOVDBG_BLOCK_EXIT;
		else if ((fact->kind == KCOVDBG_FACT_EDGE || fact->kind == KCOVDBG_FACT_EXCEPTION ||
			  fact->kind == KCOVDBG_FACT_LEADS) &&
			 !add_jump(builder, block, fact->value))
			return false;
	}
	return true;
}

static bool has_arm64_switches(const struct builder *builder)
{
	const struct kcovdbg_architecture *architecture = builder->code->image->architecture;

	return architecture && architecture->has_arm64_switches;
}

static bool add_switch(struct builder *builder, struct block *block)
{
	size_t i;

	if (!has_arm64_switches(builder))
		return true;
	if (!read_switch(builder, block->last))
		return false;
	for (i = 0; i < builder->target_count; i++)
		if (!add_edge(builder, block, builder->block_of[index_of(builder, builder->targets[i])]))
			return false;
	return true;
}

static bool add_pointed(struct builder *builder, struct block *block)
{
	const struct addresses *pointed = &builder->code->pointed;
	uint32_t part, first = builder->function ? builder->code->part_ends[builder->function - 1] : 0;

	for (part = first; part < builder->code->part_ends[builder->function]; part++) {
		const struct kcovdbg_part *of = &builder->code->image->parts[builder->code->function_parts[part]];
		size_t i = lower_bound(pointed->items, pointed->count, sizeof(*pointed->items), of->start);

		for (; i < pointed->count && pointed->items[i] < of->end; i++) {
			size_t to = index_of(builder, pointed->items[i]);

			if (to != NONE && !add_edge(builder, block, builder->block_of[to]))
				return false;
		}
	}
	return true;
}

/* Whether a call never returns; where only its place says so, the next instruction may follow as well. */
static bool never_returns(const struct builder *builder, const struct instruction *call)
{
	const struct kcovdbg_part *to;

	if (call->role == KCOVDBG_ROLE_NO_RETURN)
		return true;
	to = call->role ? NULL : part_at(builder->code, call->target);
	return to && builder->code->flags[to->function] & KCOVDBG_FUNCTION_NO_RETURN;
}

/* Add the edges that code has which is replaced; calls may be among the new instructions. */
static bool connect_replaced(struct builder *builder, struct block *block)
{
	size_t i;

	block->flags |= KCOVDBG_BLOCK_NO_LINES | KCOVDBG_BLOCK_CALL;
	for (i = block->first; i <= block->last; i++) {
		const struct instruction *one = &builder->instructions[i];

		if ((one->flow == KCOVDBG_FLOW_JUMP || one->flow == KCOVDBG_FLOW_BRANCH) &&
		    !add_jump(builder, block, one->target))
			return false;
		if (is_last(one->flow) && one->flow != KCOVDBG_FLOW_JUMP)
			block->flags |= KCOVDBG_BLOCK_EXIT;
	}
	return true;
}

static bool connect(struct builder *builder, size_t index)
{
	struct block *block = &builder->blocks[index];
	const struct instruction *last = &builder->instructions[block->last];
	bool falls = true, is_next;

	block->edges = builder->edge_count;
	if (last->marks & MARK_PATCHED && !connect_replaced(builder, block))
		return false;
	switch (last->marks & MARK_PATCHED ? KCOVDBG_FLOW_NEXT : last->flow) {
	case KCOVDBG_FLOW_JUMP:
		falls = false;
		if (!add_jump(builder, block, last->target))
			return false;
		break;
	case KCOVDBG_FLOW_BRANCH:
		if (!add_jump(builder, block, last->target))
			return false;
		break;
	case KCOVDBG_FLOW_INDIRECT_JUMP:
		falls = false;
		block->flags |= KCOVDBG_BLOCK_EXIT | KCOVDBG_BLOCK_INDIRECT;
		if (!add_pointed(builder, block) || !add_switch(builder, block))
			return false;
		break;
	case KCOVDBG_FLOW_RETURN:
	case KCOVDBG_FLOW_BAD:
		falls = false;
		block->flags |= KCOVDBG_BLOCK_EXIT;
		break;
	case KCOVDBG_FLOW_MAY_LEAVE:
		block->flags |= KCOVDBG_BLOCK_EXIT;
		break;
	case KCOVDBG_FLOW_TRAP:
		/* Whether code follows a trap that no table has is unknown. */
		falls = !(last->marks & MARK_BUG);
		if (!(last->marks & MARK_WARNING))
			block->flags |= KCOVDBG_BLOCK_EXIT;
		break;
	case KCOVDBG_FLOW_CALL:
		if (last->role != KCOVDBG_ROLE_CALLBACK)
			block->flags |= KCOVDBG_BLOCK_CALL;
		if (never_returns(builder, last) || last->role == KCOVDBG_ROLE_BOUNDARY ||
		    (!last->role && is_inside(builder, last->target) && !is_start(builder->code, last->target)))
			block->flags |= KCOVDBG_BLOCK_EXIT;
		break;
	case KCOVDBG_FLOW_INDIRECT_CALL:
		block->flags |= KCOVDBG_BLOCK_CALL;
		break;
	}
	if (last->marks & (MARK_EDGE | MARK_PATCHED) && !add_facts(builder, block, &falls))
		return false;
	is_next = block->last + 1 < builder->instruction_count &&
		  builder->instructions[block->last + 1].address == last->address + last->length;
	if (falls && is_next) {
		if (!add_edge(builder, block, index + 1))
			return false;
	} else if (falls) {
		block->flags |= KCOVDBG_BLOCK_EXIT;
	}
	block->edge_end = builder->edge_count;
	if (builder->instructions[block->first].marks & MARK_ENTRY)
		block->flags |= KCOVDBG_BLOCK_ENTRY;
	if (index && builder->instructions[builder->blocks[index - 1].last].role == KCOVDBG_ROLE_BOUNDARY)
		block->flags |= KCOVDBG_BLOCK_ENTRY;
	return true;
}

static bool is_padding(const struct builder *builder, const struct block *block)
{
	size_t i;

	for (i = block->first; i <= block->last; i++)
		if (builder->instructions[i].flow != KCOVDBG_FLOW_PADDING && builder->instructions[i].flow != KCOVDBG_FLOW_TRAP)
			return false;
	return true;
}

/* Code that no edge leads to is padding, or is reached in a way that is unknown. */
static bool find_unreached(struct builder *builder)
{
	size_t i, k;
	uint32_t *counts = calloc(builder->block_count + 1, sizeof(*counts));

	if (!counts)
		return false;
	for (i = 0; i < builder->edge_count; i++)
		counts[builder->edges[i]]++;
	for (i = 0; i < builder->block_count; i++) {
		struct block *block = &builder->blocks[i];

		if (counts[i] || block->flags & KCOVDBG_BLOCK_ENTRY)
			continue;
		if (!is_padding(builder, block)) {
			block->flags |= KCOVDBG_BLOCK_ENTRY;
			continue;
		}
		for (k = block->edges; k < block->edge_end; k++)
			counts[builder->edges[k]]--;
		block->edge_end = block->edges;
		block->flags = KCOVDBG_BLOCK_NO_LINES;
	}
	free(counts);
	return true;
}

struct sequence {
	uint64_t start;
	const struct kcovdbg_unit_rows *rows;
	size_t first, end;
};

struct sequences {
	struct sequence *items;
	size_t count, room;
};

static int compare_sequences(const void *left, const void *right)
{
	const struct sequence *a = left, *b = right;

	return (a->start > b->start) - (a->start < b->start);
}

static bool list_sequences(struct sequences *sequences, const struct kcovdbg_unit_rows *rows)
{
	size_t i, first = 0;

	for (i = 0; i < rows->count; i++) {
		bool is_end = rows->files[i] == UINT32_MAX || i + 1 == rows->count;

		if (!is_end && rows->addresses[i + 1] >= rows->addresses[i])
			continue;
		if (rows->addresses[first]) {
			if (!grow(&sequences->items, &sequences->room, sequences->count + 1, sizeof(*sequences->items)))
				return false;
			sequences->items[sequences->count++] = (struct sequence){ rows->addresses[first], rows, first, i + 1 };
		}
		first = i + 1;
	}
	return true;
}

/* Put where the bits of each file's lines begin, for each line one; return the number of files. */
static size_t number_lines(const uint32_t *files, const uint32_t *lines, size_t count, uint64_t **starts)
{
	size_t file_count = 0, i;
	uint64_t total = 0;

	for (i = 0; i < count; i++)
		if (files[i] != UINT32_MAX && files[i] >= file_count)
			file_count = (size_t)files[i] + 1;
	*starts = calloc(file_count + 1, sizeof(**starts));
	if (!*starts)
		return 0;
	for (i = 0; i < count; i++)
		if (files[i] != UINT32_MAX && (lines[i] & KCOVDBG_MAX_LINE) >= (*starts)[files[i]])
			(*starts)[files[i]] = (lines[i] & KCOVDBG_MAX_LINE) + 1;
	for (i = 0; i <= file_count; i++) {
		uint64_t size = (*starts)[i];

		(*starts)[i] = total;
		total += size;
	}
	return file_count;
}

/*
 * Leave out rows without an instruction of lines that have none in any row: nothing is said of such lines. Return the number of rows, SIZE_MAX
 * when out of memory.
 */
static size_t drop_empty_rows(uint64_t *addresses, uint32_t *files, uint32_t *lines, size_t count)
{
	uint64_t *starts;
	size_t file_count = number_lines(files, lines, count, &starts), i, kept = 0;
	uint8_t *has_code = starts ? calloc(starts[file_count] + 1, 1) : NULL;

	if (!has_code) {
		free(starts);
		return SIZE_MAX;
	}
	for (i = 0; i < count; i++)
		if (files[i] != UINT32_MAX && (i + 1 == count || addresses[i + 1] != addresses[i]))
			has_code[starts[files[i]] + (lines[i] & KCOVDBG_MAX_LINE)] = 1;
	for (i = 0; i < count; i++) {
		if (files[i] != UINT32_MAX && !has_code[starts[files[i]] + (lines[i] & KCOVDBG_MAX_LINE)])
			continue;
		addresses[kept] = addresses[i];
		files[kept] = files[i];
		lines[kept++] = lines[i];
	}
	free(has_code);
	free(starts);
	return kept;
}

size_t kcovdbg_rows_order(const struct kcovdbg_unit_rows *parts, size_t part_count, uint64_t *addresses, uint32_t *files,
			  uint32_t *lines, size_t limit)
{
	struct sequences sequences = { 0 };
	size_t i, k, total = 0;

	for (i = 0; i < part_count; i++)
		if (!list_sequences(&sequences, &parts[i])) {
			free(sequences.items);
			return SIZE_MAX;
		}
	if (sequences.count)
		qsort(sequences.items, sequences.count, sizeof(*sequences.items), compare_sequences);
	for (i = 0; i < sequences.count; i++) {
		const struct sequence *one = &sequences.items[i];
		const struct kcovdbg_unit_rows *rows = one->rows;

		if ((total && one->start < addresses[total - 1]) || one->end - one->first + 1 > limit - total)
			continue;
		for (k = one->first; k < one->end; k++) {
			addresses[total] = rows->addresses[k];
			files[total] = rows->files[k] < rows->number_count ? rows->numbers[rows->files[k]] : UINT32_MAX;
			lines[total++] = rows->lines[k];
		}
		/* The last row of a sequence that was cut off has no end of its own. */
		if (rows->files[one->end - 1] != UINT32_MAX) {
			addresses[total] = addresses[total - 1];
			files[total] = UINT32_MAX;
			lines[total++] = 0;
		}
	}
	free(sequences.items);
	return drop_empty_rows(addresses, files, lines, total);
}

/* Whether the line of an inlined call is in a known file. */
static bool is_known(const struct kcovdbg_unit_rows *rows, const struct kcovdbg_inlined *one)
{
	return one->file < rows->number_count && rows->numbers[one->file] != UINT32_MAX;
}

/* Put the place of each known inlined call in the order of their addresses; outer ones come first. */
static bool find_places(const struct kcovdbg_unit_rows *parts, size_t part_count, uint32_t *places, size_t room)
{
	struct keyed *items = malloc((room + 1) * sizeof(*items));
	size_t total = 0, i, k;
	bool is_sorted;

	if (!items)
		return false;
	for (i = 0; i < part_count; i++)
		for (k = 0; k < parts[i].inlined_count; k++)
			if (is_known(&parts[i], &parts[i].inlined[k])) {
				items[total] = (struct keyed){ parts[i].inlined[k].start, total };
				total++;
			}
	is_sorted = sort_keyed(items, total);
	for (i = 0; is_sorted && i < total; i++)
		places[items[i].number] = i;
	free(items);
	return is_sorted;
}

size_t kcovdbg_inlined_order(const struct kcovdbg_unit_rows *parts, size_t part_count, struct kcovdbg_inlined *inlined)
{
	size_t room = 0, total = 0, i, k;
	uint32_t *places;

	for (i = 0; i < part_count; i++)
		room += parts[i].inlined_count;
	places = malloc((room + 1) * sizeof(*places));
	if (!places || room >= UINT32_MAX || !find_places(parts, part_count, places, room)) {
		free(places);
		return SIZE_MAX;
	}
	for (i = 0; i < part_count; i++)
		for (k = 0; k < parts[i].inlined_count; k++) {
			struct kcovdbg_inlined one = parts[i].inlined[k];

			if (!is_known(&parts[i], &one))
				continue;
			one.file = parts[i].numbers[one.file];
			inlined[places[total++]] = one;
		}
	free(places);
	for (i = 0; i < total; i++) {
		uint32_t outer = i ? i - 1 : UINT32_MAX;

		while (outer != UINT32_MAX && inlined[outer].end <= inlined[i].start)
			outer = inlined[outer].outer;
		inlined[i].outer = outer;
	}
	return total;
}

static bool put_number(struct kcovdbg_bytes_out *out, uint64_t number)
{
	if (!grow(&out->data, &out->room, out->size + 10, 1))
		return false;
	for (; number >= 0x80; number >>= 7)
		out->data[out->size++] = number | 0x80;
	out->data[out->size++] = number;
	return true;
}

static uint64_t zigzag(int64_t number)
{
	return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
}

/* Whether a statement of a line begins in a block, and whether the line has code there. */
enum { PAIR_BEGINS = 1, PAIR_CODE = 2 };

static bool append_pair(struct builder *builder, struct pair pair)
{
	if (!grow(&builder->pairs, &builder->pair_room, builder->pair_count + 1, sizeof(*builder->pairs)))
		return false;
	builder->pairs[builder->pair_count++] = pair;
	return true;
}

/*
 * Add what a row says of a line. A line is there once, where its code begins, and once more if a statement of it begins later: if the task
 * is between the two, its code was executed, but no beginning.
 */
static bool add_pair(struct builder *builder, struct pair pair)
{
	size_t i;

	for (i = 0; i < builder->pair_count; i++) {
		struct pair *known = &builder->pairs[i];

		if (known->file != pair.file || known->line != pair.line)
			continue;
		if (known->flags & PAIR_CODE) {
			pair.flags &= ~known->flags;
		} else if (pair.flags & PAIR_CODE) {
			pair.flags |= known->flags;
			memmove(known, known + 1, (builder->pair_count - i - 1) * sizeof(*known));
			builder->pair_count--;
			i--;
		} else {
			pair.flags = 0;
		}
	}
	return !pair.flags || append_pair(builder, pair);
}

static uint64_t address_at(const void *items, size_t size, size_t index)
{
	return *(const uint64_t *)((const char *)items + index * size);
}

/* The first of some items that is not below an address, which they begin with: most are near the last one that was looked for. */
static size_t find_near(const void *items, size_t count, size_t size, size_t near, uint64_t address)
{
	size_t low = near, high = near, step;

	for (step = 1; low && address_at(items, size, low - 1) >= address; step *= 2) {
		high = low - 1;
		low = step < high ? high - step : 0;
	}
	for (step = 1; high < count && address_at(items, size, high) < address; step *= 2) {
		low = high + 1;
		high = step < count - low ? low + step : count;
	}
	return low + lower_bound((const char *)items + low * size, high - low, size, address);
}

static size_t find_row(struct builder *builder, uint64_t address)
{
	const struct kcovdbg_rows *rows = builder->rows;

	builder->row = find_near(rows->addresses, rows->count, sizeof(*rows->addresses), builder->row, address);
	return builder->row;
}

/*
 * Gather the lines of a block, each once. Of several rows at an address the last one has the code; the others are of statements without an
 * instruction of their own, or whose instructions come later. At the first address of a block they may be of the path before it.
 */
static bool find_lines(struct builder *builder, uint64_t start, uint64_t end)
{
	const struct kcovdbg_rows *rows = builder->rows;
	size_t first = find_row(builder, start), i;

	builder->pair_count = 0;
	/* The row that the block's first address is in. */
	if (first && (first == rows->count || rows->addresses[first] != start))
		first--;
	for (i = first; i < rows->count && rows->addresses[i] < end; i++) {
		uint32_t line = rows->lines[i] & KCOVDBG_MAX_LINE;
		bool begins = rows->lines[i] & KCOVDBG_ROW_STATEMENT && rows->addresses[i] >= start;
		bool is_empty = i + 1 < rows->count && rows->addresses[i + 1] == rows->addresses[i];
		struct pair pair = { .file = rows->files[i], .line = line };

		pair.flags = (is_empty ? 0 : PAIR_CODE) | (begins ? PAIR_BEGINS : 0);
		pair.offset = rows->addresses[i] > start ? rows->addresses[i] - start : 0;
		if (pair.file != UINT32_MAX && line && pair.flags && !add_pair(builder, pair))
			return false;
	}
	for (i = first; i < rows->count && rows->addresses[i] == start; i++) {
		uint32_t line = rows->lines[i] & KCOVDBG_MAX_LINE;
		size_t k, count = 0;

		for (k = 0; k < builder->pair_count; k++) {
			struct pair pair = builder->pairs[k];
			bool is_other = pair.file != rows->files[i] || pair.line != line;

			if (is_other || pair.offset || pair.flags & PAIR_CODE)
				builder->pairs[count++] = pair;
		}
		builder->pair_count = count;
	}
	return true;
}

/* Put the line of a branch at the end of a block's lines with code, once more where it is not the last one. */
static bool add_branch_line(struct builder *builder, uint64_t start, uint64_t address)
{
	const struct kcovdbg_rows *rows = builder->rows;
	size_t row = find_row(builder, address + 1), i = builder->pair_count;
	struct pair pair = { .offset = address - start, .flags = PAIR_CODE };

	if (!row || rows->files[row - 1] == UINT32_MAX)
		return true;
	pair.file = rows->files[row - 1];
	pair.line = rows->lines[row - 1] & KCOVDBG_MAX_LINE;
	while (i && !(builder->pairs[i - 1].flags & PAIR_CODE))
		i--;
	if (!pair.line || (i && builder->pairs[i - 1].file == pair.file && builder->pairs[i - 1].line == pair.line))
		return true;
	return append_pair(builder, pair);
}

static bool is_same(struct place one, struct place other)
{
	return one.file == other.file && one.line == other.line;
}

/* No kernel has so much code inlined into one block, or into each other. */
#define MOST_CALLS 256
#define MOST_NESTED 1024

/* Whether a statement of a line begins in the block whose lines were gathered last. */
static bool begins_in_block(const struct builder *builder, struct place place)
{
	size_t i;

	for (i = 0; i < builder->pair_count; i++) {
		const struct pair *pair = &builder->pairs[i];

		if (pair->flags & PAIR_BEGINS && pair->file == place.file && pair->line == place.line)
			return true;
	}
	return false;
}

/* Gather where code of a block is whose statement begins in it. What the compiler moved into the block is not. */
static bool find_begun(struct builder *builder, uint64_t start, uint64_t end)
{
	const struct kcovdbg_rows *rows = builder->rows;
	size_t i;

	builder->begun_count = 0;
	for (i = find_row(builder, start); i < rows->count && rows->addresses[i] < end; i++) {
		struct place place = { rows->files[i], rows->lines[i] & KCOVDBG_MAX_LINE };

		if ((i + 1 < rows->count && rows->addresses[i + 1] == rows->addresses[i]) || !begins_in_block(builder, place))
			continue;
		if (!grow(&builder->begun, &builder->begun_room, builder->begun_count + 1, sizeof(*builder->begun)))
			return false;
		builder->begun[builder->begun_count++] = rows->addresses[i];
	}
	return true;
}

/* Whether a statement of inlined code begins in the block. */
static bool has_begun(const struct builder *builder, const struct kcovdbg_inlined *inlined)
{
	size_t i;

	for (i = 0; i < builder->begun_count; i++)
		if (builder->begun[i] >= inlined->start && builder->begun[i] < inlined->end)
			return true;
	return false;
}

/* Add the line of a call to those of a block, once. */
static bool add_call(struct builder *builder, const struct kcovdbg_inlined *inlined, uint64_t start)
{
	struct call call = { .place = { inlined->file, inlined->line }, .begins = has_begun(builder, inlined) };
	size_t i;

	for (i = 0; i < builder->call_count; i++)
		if (is_same(builder->calls[i].place, call.place)) {
			builder->calls[i].begins |= call.begins;
			return true;
		}
	if (builder->call_count == MOST_CALLS)
		return true;
	if (!grow(&builder->calls, &builder->call_room, builder->call_count + 1, sizeof(*builder->calls)))
		return false;
	call.offset = inlined->start > start ? inlined->start - start : 0;
	builder->calls[builder->call_count++] = call;
	return true;
}

/* Gather the lines that code of a block was inlined at. */
static bool find_calls(struct builder *builder, uint64_t start, uint64_t end)
{
	const struct kcovdbg_inlined *inlined = builder->rows->inlined;
	size_t count = builder->rows->inlined_count, nested = 0, i;
	uint32_t outer;

	builder->inlined = find_near(inlined, count, sizeof(*inlined), builder->inlined, start);
	outer = builder->inlined ? builder->inlined - 1 : UINT32_MAX;
	for (; outer != UINT32_MAX && nested < MOST_NESTED && inlined[outer].end <= start; nested++)
		outer = inlined[outer].outer;
	if (outer == UINT32_MAX && (builder->inlined == count || inlined[builder->inlined].start >= end))
		return true;
	if (!find_begun(builder, start, end))
		return false;
	for (; outer != UINT32_MAX && nested < MOST_NESTED; outer = inlined[outer].outer, nested++)
		if (inlined[outer].end > start && !add_call(builder, &inlined[outer], start))
			return false;
	/* These came innermost first. */
	for (i = 0; i < builder->call_count / 2; i++) {
		struct call *other = &builder->calls[builder->call_count - 1 - i], one = builder->calls[i];

		builder->calls[i] = *other;
		*other = one;
	}
	for (i = builder->inlined; i < count && inlined[i].start < end; i++)
		if (!add_call(builder, &inlined[i], start))
			return false;
	return true;
}

/* Put a place with what its lowest bits are to be: files and lines go back from what was inlined to those before. */
static bool put_place(struct kcovdbg_bytes_out *out, struct last_places *last, struct place place, unsigned int bits,
		      unsigned int flags)
{
	bool is_other = place.file != last->last.file, is_back = is_other && place.file == last->other.file;
	uint32_t line = is_back ? last->other.line : last->last.line;

	if (!put_number(out, (zigzag((int64_t)place.line - line) << bits | flags) << 1 | is_other) ||
	    (is_other && !put_number(out, is_back ? 0 : (uint64_t)place.file + 1)))
		return false;
	if (is_other)
		last->other = last->last;
	last->last = place;
	return true;
}

/* How many of the last block's calls go on at the start of a block. */
static size_t count_same_calls(const struct builder *builder)
{
	size_t i = 0;

	while (i < builder->call_count && i < builder->last_call_count && !builder->calls[i].offset &&
	       is_same(builder->calls[i].place, builder->last_calls[i].place))
		i++;
	return i;
}

/* How many of the first calls have no statement that begins in the block. If one begins in an inner call, it does in the outer ones. */
static size_t count_unbegun(const struct builder *builder, size_t count)
{
	size_t unbegun = 0;

	while (unbegun < count && !builder->calls[count - 1 - unbegun].begins)
		unbegun++;
	return unbegun;
}

/*
 * Put how many of the last block's calls go on in a block, how many of these do not begin in it, how many others it has, and these. Few others
 * share a byte with the first number.
 */
static bool put_calls(struct builder *builder, size_t same, size_t unbegun)
{
	size_t i, more = builder->call_count - same, room = builder->last_call_room;
	struct call *last = builder->last_calls;
	uint64_t head = same << KCOVDBG_SAME_CALLS | (unbegun ? KCOVDBG_SOME_UNBEGUN : 0);
	bool has_many = more >= KCOVDBG_MANY_CALLS;

	if (!put_number(builder->out, head | (has_many ? KCOVDBG_MANY_CALLS : more)) ||
	    (has_many && !put_number(builder->out, more - KCOVDBG_MANY_CALLS)) ||
	    (unbegun && !put_number(builder->out, unbegun)))
		return false;
	for (i = same; i < builder->call_count; i++) {
		const struct call *call = &builder->calls[i];
		/* Most begin in the block, at its first address. */
		uint64_t rest = (uint64_t)call->offset << 1 | !call->begins;

		if (!put_place(builder->out, &builder->last_call, call->place, 1, rest != 0) ||
		    (rest && !put_number(builder->out, rest)))
			return false;
	}
	builder->last_calls = builder->calls;
	builder->last_call_count = builder->call_count;
	builder->last_call_room = builder->call_room;
	builder->calls = last;
	builder->call_room = room;
	return true;
}

/* Put the lines of a block, those with code with their offsets, of which the first one is mostly 0. */
static bool put_lines(struct builder *builder)
{
	uint32_t offset = 0;
	bool is_first = true;
	size_t i, first = 0, same = count_same_calls(builder), unbegun = count_unbegun(builder, same);
	bool has_changed = same < builder->call_count || same < builder->last_call_count || unbegun;

	while (first < builder->pair_count && !(builder->pairs[first].flags & PAIR_CODE))
		first++;
	if (first < builder->pair_count)
		offset = builder->pairs[first].offset;
	if (!put_number(builder->out, (uint64_t)builder->pair_count << 2 | has_changed << 1 | (offset != 0)) ||
	    (has_changed && !put_calls(builder, same, unbegun)) || (offset && !put_number(builder->out, offset)))
		return false;
	for (i = 0; i < builder->pair_count; i++) {
		const struct pair *pair = &builder->pairs[i];

		if (!put_place(builder->out, &builder->last_line, (struct place){ pair->file, pair->line }, 2, pair->flags))
			return false;
		if (!(pair->flags & PAIR_CODE))
			continue;
		if (!is_first && !put_number(builder->out, pair->offset - offset))
			return false;
		is_first = false;
		offset = pair->offset;
	}
	return true;
}

static bool put_block(struct builder *builder, size_t index)
{
	struct block *block = &builder->blocks[index];
	uint64_t start = builder->instructions[block->first].address;
	const struct instruction *last = &builder->instructions[block->last];
	size_t k, others = 0;

	for (k = block->edges; k < block->edge_end; k++) {
		if (builder->edges[k] == index + 1)
			block->flags |= KCOVDBG_BLOCK_FALLS;
		else
			others++;
	}
	/* Most have few edges: their number shares a byte with the flags. */
	if (!put_number(builder->out, last->address + last->length - start) ||
	    !put_number(builder->out, block->flags | (uint64_t)others << 6))
		return false;
	for (k = block->edges; k < block->edge_end; k++)
		if (builder->edges[k] != index + 1 &&
		    !put_number(builder->out, zigzag((int64_t)builder->edges[k] - (int64_t)index)))
			return false;
	builder->pair_count = builder->call_count = 0;
	if (!(block->flags & KCOVDBG_BLOCK_NO_LINES) || last->marks & MARK_PATCHED) {
		if (!find_lines(builder, start, last->address + last->length))
			return false;
		if (block->flags & KCOVDBG_BLOCK_FALLS && others == 1 && !add_branch_line(builder, start, last->address))
			return false;
		if (!find_calls(builder, start, last->address + last->length))
			return false;
	}
	return put_lines(builder);
}

/* The number of blocks of each part, then the blocks. */
static bool put_function(struct builder *builder, const uint32_t *parts, size_t part_count)
{
	size_t i, block = 0;

	if (!put_number(builder->out, builder->flags))
		return false;
	for (i = 0; i < part_count; i++) {
		uint64_t end = builder->code->image->parts[parts[i]].end;
		size_t first = block;

		while (block < builder->block_count && builder->instructions[builder->blocks[block].first].address < end)
			block++;
		if (!put_number(builder->out, block - first))
			return false;
	}
	builder->last_line = builder->last_call = (struct last_places){ { UINT32_MAX, 0 }, { UINT32_MAX, 0 } };
	builder->last_call_count = 0;
	for (i = 0; i < builder->block_count; i++)
		if (!put_block(builder, i))
			return false;
	return true;
}

static bool build(struct builder *builder, uint32_t function)
{
	const struct kcovdbg_code *code = builder->code;
	const struct kcovdbg_image *image = code->image;
	uint32_t first = function ? code->part_ends[function - 1] : 0, end = code->part_ends[function], i;

	builder->function = function;
	builder->flags = code->flags[function];
	builder->has_callbacks = builder->has_indirect_jump = builder->has_interrupt_return = false;
	builder->instruction_count = builder->edge_count = 0;
	for (i = first; i < end; i++)
		if (!decode_part(builder, &image->parts[code->function_parts[i]]))
			return false;
	if (builder->has_callbacks)
		builder->flags |= KCOVDBG_FUNCTION_INSTRUMENTED;
	if (builder->has_indirect_jump && !has_arm64_switches(builder) && (image->architecture || has_offset_table(builder)))
		builder->flags |= KCOVDBG_FUNCTION_VOID;
	mark_constants(builder);
	for (i = first; i < end; i++) {
		const struct kcovdbg_part *part = &image->parts[code->function_parts[i]];
		/* A switch leads to what data points at. Only assembly may be entered there from elsewhere. */
		bool is_switch = builder->has_indirect_jump;

		mark_all(builder, part, image->starts, image->start_count, MARK_LEADER | MARK_ENTRY);
		mark_all(builder, part, code->entries.items, code->entries.count, MARK_LEADER | MARK_ENTRY);
		mark_all(builder, part, code->pointed.items, code->pointed.count, MARK_LEADER | (is_switch ? 0 : MARK_ENTRY));
		mark_facts(builder, part);
	}
	mark_stubs(builder);
	mark_jumps(builder);
	/* Twice, as what one switch leads to may be between the instructions of another. */
	if (has_arm64_switches(builder) && !(mark_switches(builder) && mark_switches(builder)))
		return false;
	/* Again, for callbacks before what made it void. */
	if (builder->flags & KCOVDBG_FUNCTION_VOID)
		mark_jumps(builder);
	if (!split(builder))
		return false;
	for (i = 0; i < builder->block_count; i++)
		if (!connect(builder, i))
			return false;
	return find_unreached(builder) && put_function(builder, code->function_parts + first, end - first);
}

int kcovdbg_code_encode(const struct kcovdbg_code *code, const struct kcovdbg_rows *rows, size_t first, size_t end,
			struct kcovdbg_bytes_out *out, uint64_t *ends)
{
	struct builder builder = { .code = code, .rows = rows, .out = out };
	bool is_done = true;
	size_t i;

	for (i = first; is_done && i < end && i < code->image->function_count; i++) {
		is_done = build(&builder, i);
		ends[i - first] = out->size;
	}
	free(builder.instructions);
	free(builder.index);
	free(builder.blocks);
	free(builder.edges);
	free(builder.block_of);
	free(builder.targets);
	free(builder.pairs);
	free(builder.calls);
	free(builder.last_calls);
	free(builder.begun);
	return is_done ? 0 : -1;
}

void kcovdbg_bytes_free(struct kcovdbg_bytes_out *out)
{
	free(out->data);
	*out = (struct kcovdbg_bytes_out){ 0 };
}
