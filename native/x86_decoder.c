// SPDX-License-Identifier: LGPL-2.1-or-later
/* By the opcode maps of Intel's manual, volume 2, appendix A. */
#include <stdbool.h>
#include <string.h>

#include "x86_decoder.h"

/* An instruction has 15 bytes at most. Decoding reads further bytes after 15 prefixes, but not beyond the window. */
#define MAX_LENGTH 15
#define WINDOW 32

/*
 * A character for the bytes that follow each opcode; a row has 16 opcodes.
 *   .  nothing             m  ModRM               x  no instruction
 *   b  1 byte              B  ModRM and 1 byte    w  2 bytes
 *   z  4 bytes, 2 with the prefix 66              Z  ModRM and these
 *   v  as z, 8 with REX.W  a  an address          e  3 bytes
 *   j  displacement of 1 byte                     J  of 4 bytes
 *   T  ModRM; a test has 1 byte more              U  ModRM; a test has 4 bytes more, or 2
 *   p  prefix, or start of another map
 */
static const char ONE_BYTE[256 + 1] = "mmmmbzxxmmmmbzxp"
				      "mmmmbzxxmmmmbzxx"
				      "mmmmbzpxmmmmbzpx"
				      "mmmmbzpxmmmmbzpx"
				      "pppppppppppppppp"
				      "................"
				      "xxxmppppzZbB...."
				      "jjjjjjjjjjjjjjjj"
				      "BZxBmmmmmmmmmmmm"
				      "..........x....."
				      "aaaa....bz......"
				      "bbbbbbbbvvvvvvvv"
				      "BBw.ppBZe.w..bx."
				      "mmmmxxx.mmmmmmmm"
				      "jjjjbbbbJJxj...."
				      "p.pp..TU......mm";

/* After 0f. */
static const char TWO_BYTE[256 + 1] = "mmmmx.....x.xm.B"
				      "mmmmmmmmmmmmmmmm"
				      "mmmmmmmmmmmmmmmm"
				      "......x.pxpxxxxx"
				      "mmmmmmmmmmmmmmmm"
				      "mmmmmmmmmmmmmmmm"
				      "mmmmmmmmmmmmmmmm"
				      "BBBBmmm.mmmmmmmm"
				      "JJJJJJJJJJJJJJJJ"
				      "mmmmmmmmmmmmmmmm"
				      "...mBmmm...mBmmm"
				      "mmmmmmmmmmBmmmmm"
				      "mmBmBBBm........"
				      "mmmmmmmmmmmmmmmm"
				      "mmmmmmmmmmmmmmmm"
				      "mmmmmmmmmmmmmmmm";

struct decoding {
	const uint8_t *bytes;
	unsigned int at;
	bool is_small;	    /* Prefix 66. */
	bool has_address32; /* Prefix 67. */
	bool is_repeated;   /* Prefix f2 or f3. */
	bool is_wide;	    /* REX.W. */
	bool is_vector;	    /* VEX or EVEX. */
	unsigned int map, opcode, modrm;
};

static int64_t load(const uint8_t *bytes, unsigned int size)
{
	int32_t word;

	if (size == 1)
		return (int8_t)bytes[0];
	memcpy(&word, bytes, sizeof(word));
	return size == 2 ? (int16_t)word : word;
}

static void add_operand(struct kcovdbg_instruction *instruction, int64_t value, bool is_relative)
{
	instruction->operands[instruction->operand_count] = value;
	instruction->is_relative[instruction->operand_count++] = is_relative;
}

static bool skip_prefixes(struct decoding *d)
{
	for (; d->at < MAX_LENGTH; d->at++) {
		switch (d->bytes[d->at]) {
		case 0x66:
			d->is_small = true;
			break;
		case 0x67:
			d->has_address32 = true;
			break;
		case 0xf2:
		case 0xf3:
			d->is_repeated = true;
			break;
		case 0x26:
		case 0x2e:
		case 0x36:
		case 0x3e:
		case 0x64:
		case 0x65:
		case 0xf0:
			break;
		default:
			return true;
		}
	}
	return false;
}

/* Read the opcode; return the character for the bytes that follow it. */
static char read_opcode(struct decoding *d)
{
	unsigned int first = d->bytes[d->at++];
	char follows;

	if (first == 0xc4 || first == 0xc5 || first == 0x62) {
		/* The prefixes VEX of 3 and 2 bytes, and EVEX. All of their instructions have ModRM but vzeroupper. */
		unsigned int more = first == 0xc5 ? 1 : first == 0xc4 ? 2 : 3;

		d->is_vector = true;
		d->map = first == 0xc5 ? 1 : d->bytes[d->at] & (first == 0xc4 ? 0x1f : 7);
		d->opcode = d->bytes[d->at + more];
		d->at += more + 1;
		if (d->map == 1 && d->opcode == 0x77)
			return '.';
		return d->map == 3 || (d->map == 1 && TWO_BYTE[d->opcode] == 'B') ? 'B' : 'm';
	}
	if ((first & 0xf0) == 0x40) {
		d->is_wide = first & 8;
		first = d->bytes[d->at++];
		/* The prefix is the last one. */
		if (ONE_BYTE[first] == 'p' && first != 0x0f)
			return 'x';
	}
	d->opcode = first;
	if (first != 0x0f)
		return ONE_BYTE[first] == 'p' ? 'x' : ONE_BYTE[first];
	d->map = 1;
	d->opcode = d->bytes[d->at++];
	follows = TWO_BYTE[d->opcode];
	if (follows != 'p')
		return follows;
	d->map = d->opcode == 0x38 ? 2 : 3;
	d->opcode = d->bytes[d->at++];
	return d->map == 2 ? 'm' : 'B';
}

/* Read ModRM, SIB and the displacement. */
static void read_modrm(struct decoding *d, struct kcovdbg_instruction *instruction)
{
	unsigned int mode, base;
	bool has_sib;

	d->modrm = d->bytes[d->at++];
	mode = d->modrm >> 6;
	/* Moves of control and debug registers have no operand in memory. */
	if (mode == 3 || (d->map == 1 && !d->is_vector && d->opcode >= 0x20 && d->opcode <= 0x23))
		return;
	base = d->modrm & 7;
	has_sib = base == 4;
	if (has_sib)
		base = d->bytes[d->at++] & 7;
	if (mode == 1) {
		d->at++;
	} else if (mode == 2 || base == 5) {
		add_operand(instruction, load(d->bytes + d->at, 4), mode == 0 && !has_sib);
		d->at += 4;
	}
}

static uint8_t flow_of(const struct decoding *d)
{
	unsigned int extension = d->modrm >> 3 & 7;

	if (d->is_vector || d->map > 1)
		return KCOVDBG_FLOW_NEXT;
	if (d->map == 1) {
		switch (d->opcode) {
		case 0x01: /* eretu and erets */
			return d->is_repeated && d->modrm == 0xca ? KCOVDBG_FLOW_RETURN : KCOVDBG_FLOW_NEXT;
		case 0x07: /* sysret, sysexit, rsm */
		case 0x35:
		case 0xaa:
			return KCOVDBG_FLOW_RETURN;
		case 0x0b: /* ud2, ud1, ud0 */
		case 0xb9:
		case 0xff:
			return KCOVDBG_FLOW_TRAP;
		case 0x1e: /* endbr64 is no padding. */
			return d->is_repeated ? KCOVDBG_FLOW_NEXT : KCOVDBG_FLOW_PADDING;
		case 0x1f:
			return KCOVDBG_FLOW_PADDING;
		}
		return d->opcode >= 0x80 && d->opcode < 0x90 ? KCOVDBG_FLOW_BRANCH : KCOVDBG_FLOW_NEXT;
	}
	switch (d->opcode) {
	case 0x70 ... 0x7f:
	case 0xe0 ... 0xe3:
		return KCOVDBG_FLOW_BRANCH;
	case 0x90:
		return d->is_repeated ? KCOVDBG_FLOW_NEXT : KCOVDBG_FLOW_PADDING;
	case 0xc2:
	case 0xc3:
	case 0xca:
	case 0xcb:
	case 0xcf:
		return KCOVDBG_FLOW_RETURN;
	case 0xc7: /* xbegin */
		return d->modrm == 0xf8 ? KCOVDBG_FLOW_BRANCH : KCOVDBG_FLOW_NEXT;
	case 0xcc:
	case 0xf1:
		return KCOVDBG_FLOW_TRAP;
	case 0xe8:
		return KCOVDBG_FLOW_CALL;
	case 0xe9:
	case 0xeb:
		return KCOVDBG_FLOW_JUMP;
	case 0xff:
		if (extension == 2 || extension == 3)
			return KCOVDBG_FLOW_INDIRECT_CALL;
		return extension == 4 || extension == 5 ? KCOVDBG_FLOW_INDIRECT_JUMP : KCOVDBG_FLOW_NEXT;
	}
	return KCOVDBG_FLOW_NEXT;
}

/* Return how many bytes an immediate or a displacement has. */
static unsigned int constant_size(const struct decoding *d, char follows)
{
	unsigned int word = d->is_small && !d->is_wide ? 2 : 4;
	bool is_test = (d->modrm >> 3 & 7) < 2;

	switch (follows) {
	case 'b':
	case 'B':
	case 'j':
		return 1;
	case 'w':
		return 2;
	case 'e':
		return 3;
	case 'z':
	case 'Z':
		return d->map == 0 && d->opcode == 0xc7 && d->modrm == 0xf8 ? 4 : word;
	case 'J':
		return 4;
	case 'v':
		return d->is_wide ? 8 : word;
	case 'a':
		return d->has_address32 ? 4 : 8;
	case 'T':
		return is_test ? 1 : 0;
	case 'U':
		return is_test ? word : 0;
	}
	return 0;
}

void kcovdbg_x86_decode(const uint8_t *bytes, size_t size, struct kcovdbg_instruction *instruction)
{
	struct decoding d = { .bytes = bytes };
	uint8_t window[WINDOW];
	unsigned int constant = 0;
	char follows = 'x';

	/* Zeros follow the last bytes. An instruction that the end cuts off is decoded with zeros, and is then refused as too long. */
	if (size < WINDOW) {
		memset(window, 0, sizeof(window));
		memcpy(window, bytes, size);
		d.bytes = window;
	}
	*instruction = (struct kcovdbg_instruction){ .length = 1, .flow = KCOVDBG_FLOW_BAD };
	if (skip_prefixes(&d))
		follows = read_opcode(&d);
	if (follows == 'x')
		return;
	if (follows == 'm' || follows == 'B' || follows == 'Z' || follows == 'T' || follows == 'U')
		read_modrm(&d, instruction);
	constant = constant_size(&d, follows);
	if (d.at + constant > MAX_LENGTH || d.at + constant > size) {
		instruction->operand_count = 0;
		return;
	}
	instruction->length = d.at + constant;
	instruction->flow = flow_of(&d);
	switch (instruction->flow) {
	case KCOVDBG_FLOW_CALL:
	case KCOVDBG_FLOW_JUMP:
	case KCOVDBG_FLOW_BRANCH:
		instruction->displacement = load(d.bytes + d.at, constant);
		instruction->operand_count = 0;
		return;
	}
	if (constant == 4 || constant == 8)
		add_operand(instruction, load(d.bytes + d.at, 4), false);
}

size_t kcovdbg_x86_decode_all(const uint8_t *text, size_t size, uint32_t *offsets, uint8_t *lengths, uint8_t *flows,
			      int64_t *displacements)
{
	size_t at, count = 0;
	struct kcovdbg_instruction one;

	for (at = 0; at < size; at += one.length) {
		kcovdbg_x86_decode(text + at, size - at, &one);
		offsets[count] = at;
		lengths[count] = one.length;
		flows[count] = one.flow;
		displacements[count++] = one.displacement;
	}
	return count;
}
