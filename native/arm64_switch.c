// SPDX-License-Identifier: LGPL-2.1-or-later
/*
 *	adrp x0, table
 *	add  x0, x0, :lo12:table
 *	ldrh w0, [x0, w20, uxtw #1]
 *	adr  x1, base
 *	add  x0, x1, w0, sxth #2
 *	br   x0
 *
 * The registers differ, and other instructions may be in between. adr alone may make the address of a near table.
 */
#include "arm64_switch.h"

#include <string.h>

/* Limit for the instructions between the one that sets a register and its use. */
#define MOST_STEPS 32
#define WORD 4
#define PAGE 4096
#define NONE SIZE_MAX

static uint32_t read_word(const uint8_t *code, size_t offset)
{
	uint32_t word;

	memcpy(&word, code + offset, sizeof(word));
	return word;
}

static uint8_t first_register(uint32_t word)
{
	return word & 31;
}

static uint8_t second_register(uint32_t word)
{
	return word >> 5 & 31;
}

static uint8_t third_register(uint32_t word)
{
	return word >> 16 & 31;
}

/* Whether an instruction is b, bl, br, blr, ret or eret: a called function changes most registers. */
static bool goes_elsewhere(uint32_t word)
{
	return (word & 0x7c000000) == 0x14000000 || (word & 0xfe000000) == 0xd6000000;
}

/* b.cond, cbz, cbnz, tbz and tbnz set no register. */
static bool is_branch(uint32_t word)
{
	return (word & 0xff000000) == 0x54000000 || (word & 0x7c000000) == 0x34000000;
}

/* Whether an instruction may set a register. A store from it counts as well, as its operand is in the place of a load's result. */
static bool may_set(uint32_t word, uint8_t wanted)
{
	bool is_memory = (word & 0x0a000000) == 0x08000000;
	bool is_pair = (word & 0x3a000000) == 0x28000000;
	/* Exclusive and atomic ones have results in several places. */
	bool is_exclusive = (word & 0x3f000000) == 0x08000000;
	bool is_atomic = (word & 0x3b200c00) == 0x38200000;
	bool moves_pair = is_pair && (word & 0x00800000);
	bool moves_one = (word & 0x3b200400) == 0x38000400;

	if (is_branch(word))
		return false;
	if (first_register(word) == wanted || is_exclusive || is_atomic)
		return true;
	if (is_pair && (word >> 10 & 31) == wanted)
		return true;
	return is_memory && (moves_pair || moves_one) && second_register(word) == wanted;
}

/* Return the offset of the instruction that set a register before another one; NONE if it is not certain. */
static size_t find_setter(const uint8_t *code, size_t offset, uint8_t wanted)
{
	int steps;

	for (steps = 0; steps < MOST_STEPS && offset >= WORD; steps++) {
		uint32_t word;

		offset -= WORD;
		word = read_word(code, offset);
		if (goes_elsewhere(word))
			return NONE;
		if (may_set(word, wanted))
			return offset;
	}
	return NONE;
}

/* The displacement of adr, in bytes, and of adrp, in pages. */
static int64_t read_displacement(uint32_t word)
{
	uint32_t value = (word >> 5 & 0x7ffff) << 2 | (word >> 29 & 3);

	return (int64_t)((uint64_t)value << 43) >> 43;
}

static bool is_adr(uint32_t word)
{
	return (word & 0x9f000000) == 0x10000000;
}

static bool is_adrp(uint32_t word)
{
	return (word & 0x9f000000) == 0x90000000;
}

static bool is_add_of_constant(uint32_t word)
{
	return (word & 0xffc00000) == 0x91000000;
}

/* add x, x, w, sxtb #2, and by half words and words. */
static bool is_add_of_entry(uint32_t word)
{
	return (word & 0xffe01c00) == 0x8b200800 && (word >> 13 & 7) >= 4 && (word >> 13 & 7) <= 6;
}

/* ldrb, ldrh and ldr of 4 bytes, at the sum of two registers. */
static bool is_load_of_entry(uint32_t word)
{
	return (word & 0x3fe00c00) == 0x38600800 && word >> 30 <= 2;
}

/* Find the address in a register at an offset, and the first instruction that makes it. */
static bool read_address(const uint8_t *code, size_t offset, uint64_t address, uint8_t wanted, uint64_t *value, size_t *first)
{
	size_t setter = find_setter(code, offset, wanted), page;
	uint32_t word;

	if (setter == NONE)
		return false;
	*first = setter < *first ? setter : *first;
	word = read_word(code, setter);
	if (is_adr(word)) {
		*value = address + setter + read_displacement(word);
		return true;
	}
	if (!is_add_of_constant(word))
		return false;
	page = find_setter(code, setter, second_register(word));
	if (page == NONE || !is_adrp(read_word(code, page)))
		return false;
	*first = page < *first ? page : *first;
	*value = ((address + page) & ~(uint64_t)(PAGE - 1)) + read_displacement(read_word(code, page)) * PAGE +
		 (word >> 10 & 0xfff);
	return true;
}

bool kcovdbg_arm64_find_switch(const uint8_t *code, size_t offset, uint64_t address, struct kcovdbg_arm64_switch *found)
{
	size_t sum = find_setter(code, offset, second_register(read_word(code, offset))), load;
	uint32_t word;

	if (sum == NONE || !is_add_of_entry(read_word(code, sum)))
		return false;
	word = read_word(code, sum);
	load = find_setter(code, sum, third_register(word));
	if (load == NONE || !is_load_of_entry(read_word(code, load)))
		return false;
	found->first = load;
	found->entry_size = 1 << (read_word(code, load) >> 30);
	return read_address(code, sum, address, second_register(word), &found->base, &found->first) &&
	       read_address(code, load, address, second_register(read_word(code, load)), &found->table, &found->first);
}
