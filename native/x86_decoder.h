/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Lengths and branches of the instructions of x86-64, and nothing else about them. */
#ifndef KCOVDBG_X86_DECODER_H
#define KCOVDBG_X86_DECODER_H

#include <stddef.h>
#include <stdint.h>

/* cdef */
/* What an instruction does to the flow of control. */
enum kcovdbg_flow {
	KCOVDBG_FLOW_NEXT,	    /* The next one follows. */
	KCOVDBG_FLOW_PADDING,	    /* The same; it does nothing. */
	KCOVDBG_FLOW_CALL,	    /* Of a known address. */
	KCOVDBG_FLOW_JUMP,	    /* To a known address. */
	KCOVDBG_FLOW_BRANCH,	    /* To a known address, or the next one follows. */
	KCOVDBG_FLOW_RETURN,	    /* To a caller, or to user space. */
	KCOVDBG_FLOW_TRAP,	    /* An exception, always. */
	KCOVDBG_FLOW_INDIRECT_CALL, /* Through a register or memory. */
	KCOVDBG_FLOW_INDIRECT_JUMP,
	KCOVDBG_FLOW_MAY_LEAVE, /* A return or a jump to an unknown place, on a condition. */
	KCOVDBG_FLOW_BAD,	/* No instruction. */
};

struct kcovdbg_instruction {
	uint8_t length; /* In bytes; 1 for no instruction. */
	uint8_t flow;
	uint8_t operand_count;
	int64_t displacement; /* Of a call, jump or branch: from the end of the instruction. */
	/* Constants of 32 bits that may be addresses, of others: relative to the end, or absolute. */
	int32_t operands[2];
	uint8_t is_relative[2];
};

/* Decode the instruction at the start of some bytes, of which none beyond the end is read. */
void kcovdbg_x86_decode(const uint8_t *bytes, size_t size, struct kcovdbg_instruction *instruction);

/* Decode a text: the offset of each instruction, its length and flow, and its displacement. Return their number; there are size of
   them at most. */
size_t kcovdbg_x86_decode_all(const uint8_t *text, size_t size, uint32_t *offsets, uint8_t *lengths, uint8_t *flows,
			      int64_t *displacements);
/* cdef end */

#endif
