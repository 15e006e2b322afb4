// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "blocks.h"
#include "dwarf.h"

#define NONE UINT32_MAX
#define MAX_CODE (1U << 20)
#define MAX_CHAIN 1024
#define MAX_REFERENCES 16
/* Longer names are damage: paths of Linux are shorter. */
#define MAX_NAME 4096
/* Limit for readings of each byte of the sections: units may refer to the same bytes, but no compiler's need more. */
#define MAX_READINGS 64
/* Limit for the files in a unit's table: a hundred times those of the largest known. */
#define MAX_FILES (1U << 20)
/* Steps are added up so many at a time, since all threads share their counter. */
#define STEPS 64
/* Limit for the fields of an abbreviation. */
#define MAX_FIELDS 256
/* Tables of abbreviations that are kept, by their offsets: units that dwz writes share few. */
#define TABLES 61

enum {
	TAG_array_type = 0x01,
	TAG_enumeration_type = 0x04,
	TAG_member = 0x0d,
	TAG_compile_unit = 0x11,
	TAG_structure_type = 0x13,
	TAG_subroutine_type = 0x15,
	TAG_union_type = 0x17,
	TAG_inlined_subroutine = 0x1d,
	TAG_subprogram = 0x2e,
	TAG_partial_unit = 0x3c,
	TAG_call_site = 0x48,
	TAG_skeleton_unit = 0x4a,
	TAG_GNU_call_site = 0x4109,
};

enum { UNIT_compile = 1, UNIT_partial = 3, UNIT_skeleton = 4 };

enum {
	AT_sibling = 0x01,
	AT_name = 0x03,
	AT_byte_size = 0x0b,
	AT_stmt_list = 0x10,
	AT_low_pc = 0x11,
	AT_high_pc = 0x12,
	AT_language = 0x13,
	AT_comp_dir = 0x1b,
	AT_inline = 0x20,
	AT_abstract_origin = 0x31,
	AT_data_member_location = 0x38,
	AT_decl_file = 0x3a,
	AT_decl_line = 0x3b,
	AT_specification = 0x47,
	AT_type = 0x49,
	AT_ranges = 0x55,
	AT_call_column = 0x57,
	AT_call_file = 0x58,
	AT_call_line = 0x59,
	AT_linkage_name = 0x6e,
	AT_str_offsets_base = 0x72,
	AT_addr_base = 0x73,
	AT_rnglists_base = 0x74,
	AT_noreturn = 0x87,
};

enum {
	FORM_addr = 0x01,
	FORM_block2 = 0x03,
	FORM_block4 = 0x04,
	FORM_data2 = 0x05,
	FORM_data4 = 0x06,
	FORM_data8 = 0x07,
	FORM_string = 0x08,
	FORM_block = 0x09,
	FORM_block1 = 0x0a,
	FORM_data1 = 0x0b,
	FORM_flag = 0x0c,
	FORM_sdata = 0x0d,
	FORM_strp = 0x0e,
	FORM_udata = 0x0f,
	FORM_ref_addr = 0x10,
	FORM_ref1 = 0x11,
	FORM_ref2 = 0x12,
	FORM_ref4 = 0x13,
	FORM_ref8 = 0x14,
	FORM_ref_udata = 0x15,
	FORM_sec_offset = 0x17,
	FORM_exprloc = 0x18,
	FORM_flag_present = 0x19,
	FORM_strx = 0x1a,
	FORM_addrx = 0x1b,
	FORM_data16 = 0x1e,
	FORM_line_strp = 0x1f,
	FORM_ref_sig8 = 0x20,
	FORM_implicit_const = 0x21,
	FORM_loclistx = 0x22,
	FORM_rnglistx = 0x23,
	FORM_strx1 = 0x25,
	FORM_strx2 = 0x26,
	FORM_strx3 = 0x27,
	FORM_strx4 = 0x28,
	FORM_addrx1 = 0x29,
	FORM_addrx2 = 0x2a,
	FORM_addrx3 = 0x2b,
	FORM_addrx4 = 0x2c,
	/* In the file of shared entries: of version 5, and as dwz writes them. */
	FORM_ref_sup4 = 0x1c,
	FORM_strp_sup = 0x1d,
	FORM_ref_sup8 = 0x24,
	FORM_GNU_ref_alt = 0x1f20,
	FORM_GNU_strp_alt = 0x1f21,
};

/* Bytes being read; after an attempt to read beyond their end, is_bad is set and everything reads as 0. */
struct cursor {
	const unsigned char *at, *end;
	bool must_swap, is_bad;
};

struct value {
	uint64_t number;
	uint16_t form; /* 0 where the entry does not have the attribute. */
};

/* The attributes that say where code is. */
struct extent {
	struct value low, high, ranges;
};

struct unit {
	uint64_t offset, entry, end; /* In .debug_info. */
	uint64_t abbrev;
	uint16_t version;
	uint8_t address_size;
	bool is_known;
	bool has_code, has_lines;
	bool is_c, is_rust;
	bool is_shared;	    /* Of the file of shared entries, whose offsets count from its own start. */
	bool has_no_return; /* It may have functions that never return. */
	uint64_t low, lines, str_offsets_base, addr_base, rnglists_base;
	struct extent extent;
};

struct kcovdbg_dwarf {
	struct kcovdbg_sections sections;
	uint64_t max_steps;
	_Atomic uint64_t steps; /* Taken by all threads; about one for each byte read. */
	struct unit *units;
	struct kcovdbg_unit *shown;
	size_t unit_count;
};

/* An attribute; where attribute is 0, bytes to skip: of a form of variable size, or of some forms in a row. */
struct field {
	uint16_t attribute, form;
	int32_t size; /* Negative where it depends on the bytes. */
	int64_t constant;
};

struct abbreviation {
	uint32_t first, count; /* Fields. */
	uint16_t tag;
	bool has_children, is_known;
	int32_t size;	 /* Of all attributes; negative where it depends on the entry. */
	int32_t sibling; /* Offset among the attributes of the one that says where children end; negative where it is unknown. */
};

struct abbreviations {
	struct abbreviation *codes;
	size_t code_count, code_room;
	struct field *fields;
	size_t field_count, field_room;
	uint64_t offset;
	uint8_t version, address_size;
	bool is_read;
	bool has_no_return;
	bool are_types; /* Attributes of types are read as well. */
};

struct tables {
	struct abbreviations items[TABLES];
};

/* The attributes of an entry that matter here. */
struct entry {
	uint64_t offset; /* In .debug_info. */
	uint16_t tag;
	bool has_children;
	struct extent extent;
	struct value name, linkage_name, origin, specification, sibling;
	uint64_t call_file, call_line, call_column;
	uint64_t declared_file, declared_line;
	bool is_abstract, is_no_return;
	struct value byte_size, member_location, type;
	/* Of a unit. */
	struct value directory, lines, language, str_offsets_base, addr_base, rnglists_base;
};

/* Return false when the units have taken more steps than undamaged ones would. */
static bool take_steps(const struct kcovdbg_dwarf *dwarf, uint64_t count)
{
	/* The only thing that changes after kcovdbg_dwarf_new(). */
	_Atomic uint64_t *steps = (_Atomic uint64_t *)&dwarf->steps;

	return atomic_fetch_add_explicit(steps, count, memory_order_relaxed) + count <= dwarf->max_steps;
}

static struct cursor open_at(const struct kcovdbg_dwarf *dwarf, const struct kcovdbg_bytes *section, uint64_t offset)
{
	struct cursor cursor = { .must_swap = dwarf->sections.must_swap };

	if (offset > section->size) {
		cursor.is_bad = true;
		return cursor;
	}
	cursor.at = (const unsigned char *)section->data + offset;
	cursor.end = (const unsigned char *)section->data + section->size;
	return cursor;
}

static inline void skip(struct cursor *cursor, uint64_t size)
{
	if (size > (size_t)(cursor->end - cursor->at)) {
		cursor->is_bad = true;
		cursor->at = cursor->end;
		return;
	}
	cursor->at += size;
}

static inline uint64_t get(struct cursor *cursor, unsigned int size)
{
	const unsigned char *at = cursor->at;
	uint64_t value = 0;
	unsigned int i;

	if (size > (size_t)(cursor->end - at)) {
		cursor->is_bad = true;
		cursor->at = cursor->end;
		return 0;
	}
	cursor->at += size;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	bool is_big = cursor->must_swap;
#else
	bool is_big = !cursor->must_swap;
#endif
	if (!is_big) {
		switch (size) {
		case 1:
			return *at;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
		case 2:
		case 4:
		case 8:
			memcpy(&value, at, size);
			return value;
#endif
		}
		for (i = 0; i < size; i++)
			value |= (uint64_t)at[i] << 8 * i;
	} else {
		for (i = 0; i < size; i++)
			value = value << 8 | at[i];
	}
	return value;
}

static inline uint64_t get_uleb(struct cursor *cursor)
{
	uint64_t value = 0;
	unsigned int shift = 0;

	while (cursor->at < cursor->end) {
		unsigned char byte = *cursor->at++;

		if (shift < 64)
			value |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80)
			return value;
		shift += 7;
	}
	cursor->is_bad = true;
	return 0;
}

static inline int64_t get_sleb(struct cursor *cursor)
{
	uint64_t value = 0;
	unsigned int shift = 0;

	while (cursor->at < cursor->end) {
		unsigned char byte = *cursor->at++;

		if (shift < 64)
			value |= (uint64_t)(byte & 0x7f) << shift;
		shift += 7;
		if (byte < 0x80) {
			if (byte & 0x40 && shift < 64)
				value |= -1ULL << shift;
			return value;
		}
	}
	cursor->is_bad = true;
	return 0;
}

static const char *get_string(struct cursor *cursor)
{
	const unsigned char *start = cursor->at;
	size_t size = cursor->end - start;
	const unsigned char *end = size ? memchr(start, 0, size < MAX_NAME ? size : MAX_NAME) : NULL;

	if (!end) {
		cursor->is_bad = true;
		cursor->at = cursor->end;
		return NULL;
	}
	cursor->at = end + 1;
	return (const char *)start;
}

static const char *string_at(const struct kcovdbg_dwarf *dwarf, const struct kcovdbg_bytes *section, uint64_t offset)
{
	struct cursor cursor = open_at(dwarf, section, offset);

	return cursor.is_bad ? NULL : get_string(&cursor);
}

/* The size of a form, -1 where it depends on the bytes, -2 for an unknown form. */
static int form_size(uint64_t form, unsigned int address_size)
{
	switch (form) {
	case FORM_flag_present:
	case FORM_implicit_const:
		return 0;
	case FORM_data1:
	case FORM_flag:
	case FORM_ref1:
	case FORM_strx1:
	case FORM_addrx1:
		return 1;
	case FORM_data2:
	case FORM_ref2:
	case FORM_strx2:
	case FORM_addrx2:
		return 2;
	case FORM_strx3:
	case FORM_addrx3:
		return 3;
	case FORM_data4:
	case FORM_ref4:
	case FORM_ref_addr:
	case FORM_strp:
	case FORM_line_strp:
	case FORM_sec_offset:
	case FORM_strx4:
	case FORM_addrx4:
	case FORM_ref_sup4:
	case FORM_strp_sup:
	case FORM_GNU_ref_alt:
	case FORM_GNU_strp_alt:
		return 4;
	case FORM_data8:
	case FORM_ref8:
	case FORM_ref_sup8:
	case FORM_ref_sig8:
		return 8;
	case FORM_data16:
		return 16;
	case FORM_addr:
		return address_size;
	case FORM_string:
	case FORM_block:
	case FORM_block1:
	case FORM_block2:
	case FORM_block4:
	case FORM_exprloc:
	case FORM_sdata:
	case FORM_udata:
	case FORM_ref_udata:
	case FORM_strx:
	case FORM_addrx:
	case FORM_loclistx:
	case FORM_rnglistx:
		return -1;
	default:
		return -2;
	}
}

/* Skip a value of a form whose size depends on its bytes. */
static void skip_variable(struct cursor *cursor, uint64_t form)
{
	switch (form) {
	case FORM_string:
		get_string(cursor);
		break;
	case FORM_block1:
		skip(cursor, get(cursor, 1));
		break;
	case FORM_block2:
		skip(cursor, get(cursor, 2));
		break;
	case FORM_block4:
		skip(cursor, get(cursor, 4));
		break;
	case FORM_block:
	case FORM_exprloc:
		skip(cursor, get_uleb(cursor));
		break;
	default:
		get_uleb(cursor);
	}
}

static uint64_t get_variable(struct cursor *cursor, uint16_t form)
{
	switch (form) {
	case FORM_string:
		return (uintptr_t)get_string(cursor);
	case FORM_sdata:
		return get_sleb(cursor);
	case FORM_block:
	case FORM_block1:
	case FORM_block2:
	case FORM_block4:
	case FORM_exprloc:
		skip_variable(cursor, form);
		return 0;
	default:
		return get_uleb(cursor);
	}
}

/* Read a value; that of a string in place is its address. */
static inline struct value get_value(struct cursor *cursor, const struct field *field)
{
	struct value value = { .form = field->form };

	if (!field->size)
		value.number = field->constant;
	else if (field->size < 0)
		value.number = get_variable(cursor, field->form);
	else if (field->size <= 8)
		value.number = get(cursor, field->size);
	else
		skip(cursor, field->size);
	return value;
}

static bool is_wanted(uint64_t tag, uint64_t attribute, bool are_types)
{
	switch (attribute) {
	case AT_byte_size:
	case AT_data_member_location:
	case AT_type:
		return are_types;
	case AT_sibling:
		return true;
	case AT_name:
	case AT_low_pc:
	case AT_high_pc:
	case AT_ranges:
		return tag == TAG_compile_unit || tag == TAG_skeleton_unit || tag == TAG_subprogram ||
		       tag == TAG_inlined_subroutine || are_types;
	case AT_noreturn:
	case AT_decl_file:
	case AT_decl_line:
		return tag == TAG_subprogram;
	case AT_inline:
	case AT_linkage_name:
	case AT_abstract_origin:
	case AT_specification:
	case AT_call_column:
	case AT_call_file:
	case AT_call_line:
		return tag == TAG_subprogram || tag == TAG_inlined_subroutine;
	case AT_comp_dir:
	case AT_str_offsets_base:
	case AT_stmt_list:
		return tag == TAG_compile_unit || tag == TAG_skeleton_unit || tag == TAG_partial_unit;
	case AT_language:
	case AT_addr_base:
	case AT_rnglists_base:
		return tag == TAG_compile_unit || tag == TAG_skeleton_unit;
	default:
		return false;
	}
}

static bool add_field(struct abbreviations *known, uint32_t first, struct field field)
{
	struct field *last;

	if (!field.attribute && known->field_count > first) {
		last = &known->fields[known->field_count - 1];
		if (!last->attribute && last->size >= 0 && field.size >= 0) {
			last->size += field.size;
			return true;
		}
	}
	if (!grow(&known->fields, &known->field_room, known->field_count + 1, sizeof(field)))
		return false;
	known->fields[known->field_count++] = field;
	return true;
}

/* Read the abbreviations of a unit. 0, -1 when out of memory, 1 when they are damaged or have unknown forms. */
static int read_abbreviations(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct abbreviations *known)
{
	struct cursor cursor;
	const unsigned char *start;
	uint64_t code;

	if (known->is_read && known->offset == unit->abbrev && known->version == unit->version &&
	    known->address_size == unit->address_size)
		return 0;
	known->is_read = known->has_no_return = false;
	known->field_count = 0;
	if (known->code_count)
		memset(known->codes, 0, known->code_count * sizeof(*known->codes));
	cursor = open_at(dwarf, &dwarf->sections.abbrev, unit->abbrev);
	start = cursor.at;
	if (!take_steps(dwarf, known->code_count))
		return 1;
	known->code_count = 0;
	while ((code = get_uleb(&cursor)) && !cursor.is_bad) {
		struct abbreviation *abbreviation;
		uint64_t tag = get_uleb(&cursor), attribute, form;
		uint32_t first = known->field_count;
		int32_t fixed_size = 0, sibling = -1;
		bool has_children = get(&cursor, 1), is_no_return = false, has_code = false;

		if (code > MAX_CODE || tag > UINT16_MAX)
			return 1;
		for (;;) {
			struct field field = { .constant = 1 };

			attribute = get_uleb(&cursor);
			form = get_uleb(&cursor);
			if (form == FORM_implicit_const)
				field.constant = get_sleb(&cursor);
			if (cursor.is_bad)
				return 1;
			if (!attribute && !form)
				break;
			field.form = form;
			field.size = form_size(form, unit->address_size);
			if (field.size == -2)
				return 1;
			if (attribute == AT_sibling && form == FORM_ref4)
				sibling = fixed_size;
			fixed_size = fixed_size < 0 || field.size < 0 ? -1 : fixed_size + field.size;
			if (is_wanted(tag, attribute, known->are_types)) {
				is_no_return |= attribute == AT_noreturn;
				has_code |= attribute == AT_low_pc || attribute == AT_ranges;
				field.attribute = attribute;
			}
			if (known->field_count - first == MAX_FIELDS)
				return 1;
			if (!add_field(known, first, field))
				return -1;
		}
		if (!take_steps(dwarf, cursor.at - start))
			return 1;
		start = cursor.at;
		if (code > known->code_count) {
			if (!grow(&known->codes, &known->code_room, code, sizeof(*known->codes)))
				return -1;
			memset(known->codes + known->code_count, 0, (code - known->code_count) * sizeof(*known->codes));
			known->code_count = code;
		}
		abbreviation = &known->codes[code - 1];
		abbreviation->first = first;
		abbreviation->count = known->field_count - first;
		abbreviation->tag = tag;
		abbreviation->has_children = has_children;
		abbreviation->is_known = true;
		abbreviation->size = fixed_size;
		abbreviation->sibling = sibling;
		known->has_no_return |= is_no_return && has_code;
	}
	if (cursor.is_bad)
		return 1;
	known->offset = unit->abbrev;
	known->version = unit->version;
	known->address_size = unit->address_size;
	known->is_read = true;
	return 0;
}

static void free_abbreviations(struct abbreviations *known)
{
	free(known->codes);
	free(known->fields);
}

/* Return where the abbreviations of a unit are kept. */
static struct abbreviations *table_of(struct tables *tables, const struct unit *unit)
{
	return &tables->items[unit->abbrev % TABLES];
}

static void free_tables(struct tables *tables)
{
	size_t i;

	for (i = 0; i < TABLES; i++)
		free_abbreviations(&tables->items[i]);
}

static void put_value(struct entry *entry, uint16_t attribute, struct value value)
{
	switch (attribute) {
	case AT_sibling:
		entry->sibling = value;
		break;
	case AT_name:
		entry->name = value;
		break;
	case AT_linkage_name:
		entry->linkage_name = value;
		break;
	case AT_low_pc:
		entry->extent.low = value;
		break;
	case AT_high_pc:
		entry->extent.high = value;
		break;
	case AT_ranges:
		entry->extent.ranges = value;
		break;
	case AT_inline:
		entry->is_abstract = value.number != 0;
		break;
	case AT_noreturn:
		entry->is_no_return = value.number != 0;
		break;
	case AT_byte_size:
		entry->byte_size = value;
		break;
	case AT_data_member_location:
		entry->member_location = value;
		break;
	case AT_type:
		entry->type = value;
		break;
	case AT_abstract_origin:
		entry->origin = value;
		break;
	case AT_specification:
		entry->specification = value;
		break;
	case AT_decl_file:
		entry->declared_file = value.number;
		break;
	case AT_decl_line:
		entry->declared_line = value.number;
		break;
	case AT_call_file:
		entry->call_file = value.number;
		break;
	case AT_call_line:
		entry->call_line = value.number;
		break;
	case AT_call_column:
		entry->call_column = value.number;
		break;
	case AT_stmt_list:
		entry->lines = value;
		break;
	case AT_language:
		entry->language = value;
		break;
	case AT_comp_dir:
		entry->directory = value;
		break;
	case AT_str_offsets_base:
		entry->str_offsets_base = value;
		break;
	case AT_addr_base:
		entry->addr_base = value;
		break;
	case AT_rnglists_base:
		entry->rnglists_base = value;
		break;
	}
}

/* Read the number of an entry's abbreviation. NULL at the end of a list of children, and with is_bad set, for damage. */
static const struct abbreviation *get_abbreviation(const struct abbreviations *known, struct cursor *cursor)
{
	uint64_t code = get_uleb(cursor);

	if (!code)
		return NULL;
	if (code > known->code_count || !known->codes[code - 1].is_known) {
		cursor->is_bad = true;
		return NULL;
	}
	return &known->codes[code - 1];
}

static inline void skip_field(struct cursor *cursor, const struct field *field)
{
	if (field->size >= 0)
		skip(cursor, field->size);
	else
		skip_variable(cursor, field->form);
}

/* Read the attributes of an entry. */
static bool get_attributes(const struct abbreviations *known, const struct abbreviation *abbreviation, struct cursor *cursor,
			   struct entry *entry)
{
	const struct field *field = known->fields + abbreviation->first, *end = field + abbreviation->count;

	memset(entry, 0, sizeof(*entry));
	entry->tag = abbreviation->tag;
	entry->has_children = abbreviation->has_children;
	for (; field < end; field++) {
		if (field->attribute)
			put_value(entry, field->attribute, get_value(cursor, field));
		else
			skip_field(cursor, field);
	}
	return !cursor->is_bad;
}

/* Read the entry at the cursor. False at the end of a list of children, and with is_bad set, for damage. */
static bool get_entry(const struct abbreviations *known, struct cursor *cursor, struct entry *entry)
{
	const struct abbreviation *abbreviation = get_abbreviation(known, cursor);

	return abbreviation && get_attributes(known, abbreviation, cursor, entry);
}

/* Go to where the children of an entry end, if it says so. */
static bool skip_to_sibling(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct value sibling,
			    struct cursor *cursor)
{
	const unsigned char *start = (const unsigned char *)dwarf->sections.info.data + unit->offset;

	if (!sibling.form || sibling.form == FORM_ref_addr || sibling.number >= unit->end - unit->offset ||
	    start + sibling.number < cursor->at)
		return false;
	cursor->at = start + sibling.number;
	return true;
}

/* Skip an entry behind its abbreviation, with its children if they are not wanted and it says where they end. Return whether children
   follow. */
static inline bool skip_entry(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, const struct abbreviations *known,
			      const struct abbreviation *abbreviation, bool with_children, struct cursor *cursor)
{
	const struct field *field = known->fields + abbreviation->first, *end = field + abbreviation->count;

	if (with_children && abbreviation->has_children && abbreviation->sibling >= 0) {
		struct cursor at = *cursor;
		struct value sibling = { .form = FORM_ref4 };

		skip(&at, abbreviation->sibling);
		sibling.number = get(&at, 4);
		if (!at.is_bad && skip_to_sibling(dwarf, unit, sibling, &at)) {
			*cursor = at;
			return false;
		}
	}
	if (abbreviation->size >= 0)
		skip(cursor, abbreviation->size);
	else
		for (; field < end; field++)
			skip_field(cursor, field);
	return abbreviation->has_children;
}

static void skip_children(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, const struct abbreviations *known,
			  struct cursor *cursor)
{
	size_t depth = 1;

	while (depth && !cursor->is_bad && cursor->at < cursor->end) {
		const struct abbreviation *abbreviation = get_abbreviation(known, cursor);

		if (abbreviation)
			depth += skip_entry(dwarf, unit, known, abbreviation, true, cursor);
		else
			depth--;
	}
}

/* Skip the children of an entry that was read, if it has any. */
static void skip_children_of(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, const struct abbreviations *known,
			     const struct entry *entry, struct cursor *cursor)
{
	if (entry->has_children && !skip_to_sibling(dwarf, unit, entry->sibling, cursor))
		skip_children(dwarf, unit, known, cursor);
}

/* Return an offset of the file of shared entries as one of the joined section, in which that file starts later. */
static uint64_t in_shared(uint64_t offset, uint64_t start)
{
	return offset > UINT64_MAX - start ? UINT64_MAX : start + offset;
}

/* Put the offset in .debug_str of a string that is there. */
static bool find_string(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct value value, uint64_t *offset)
{
	struct cursor cursor;

	switch (value.form) {
	case FORM_strp:
		*offset = unit->is_shared ? in_shared(value.number, dwarf->sections.shared_str) : value.number;
		return true;
	case FORM_strp_sup:
	case FORM_GNU_strp_alt:
		*offset = in_shared(value.number, dwarf->sections.shared_str);
		return true;
	case FORM_strx:
	case FORM_strx1:
	case FORM_strx2:
	case FORM_strx3:
	case FORM_strx4:
		if (value.number > UINT32_MAX)
			return false;
		cursor = open_at(dwarf, &dwarf->sections.str_offsets, unit->str_offsets_base + 4 * value.number);
		*offset = get(&cursor, 4);
		return !cursor.is_bad;
	default:
		return false;
	}
}

static const char *text_of(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct value value)
{
	uint64_t offset;

	if (value.form == FORM_string)
		return (const char *)(uintptr_t)value.number;
	if (value.form == FORM_line_strp)
		return string_at(dwarf, &dwarf->sections.line_str, value.number);
	return find_string(dwarf, unit, value, &offset) ? string_at(dwarf, &dwarf->sections.str, offset) : NULL;
}

static uint64_t indexed_address(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, uint64_t index)
{
	struct cursor cursor = open_at(dwarf, &dwarf->sections.addr,
				       index > UINT32_MAX ? UINT64_MAX : unit->addr_base + unit->address_size * index);

	return get(&cursor, unit->address_size);
}

static uint64_t address_of(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct value value)
{
	return value.form == FORM_addr || !value.form ? value.number : indexed_address(dwarf, unit, value.number);
}

static bool is_address(uint16_t form)
{
	return form == FORM_addr || form == FORM_addrx || (form >= FORM_addrx1 && form <= FORM_addrx4);
}

/* The same in a loop, for each round; most of them are short. */
static bool may_continue(const struct kcovdbg_dwarf *dwarf, uint64_t round)
{
	return !round || round % STEPS || take_steps(dwarf, STEPS);
}

/* Called for each range of an entry; false ends it. */
typedef bool (*range_function)(void *context, uint64_t low, uint64_t high);

static bool list_old_ranges(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, uint64_t offset, range_function add,
			    void *context)
{
	struct cursor cursor = open_at(dwarf, &dwarf->sections.ranges, offset);
	uint64_t count = 0, base = unit->low,
		 highest = unit->address_size == 8 ? UINT64_MAX : (1ULL << 8 * unit->address_size) - 1;

	while (!cursor.is_bad && may_continue(dwarf, count++)) {
		uint64_t low = get(&cursor, unit->address_size), high = get(&cursor, unit->address_size);

		if (cursor.is_bad || (!low && !high))
			break;
		if (low == highest)
			base = high;
		else if (low < high && !add(context, base + low, base + high))
			return false;
	}
	return true;
}

static bool list_ranges(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct value list, range_function add,
			void *context)
{
	struct cursor cursor;
	uint64_t count = 0, base = unit->low, offset = list.number, low, high;

	if (unit->version < 5)
		return list_old_ranges(dwarf, unit, offset, add, context);
	if (list.form == FORM_rnglistx) {
		cursor = open_at(dwarf, &dwarf->sections.rnglists,
				 offset > UINT32_MAX ? UINT64_MAX : unit->rnglists_base + 4 * offset);
		offset = unit->rnglists_base + get(&cursor, 4);
		if (cursor.is_bad)
			return true;
	}
	cursor = open_at(dwarf, &dwarf->sections.rnglists, offset);
	while (!cursor.is_bad && may_continue(dwarf, count++)) {
		/* Table 7.30 of the standard. */
		switch (get(&cursor, 1)) {
		case 1: /* DW_RLE_base_addressx */
			base = indexed_address(dwarf, unit, get_uleb(&cursor));
			continue;
		case 2: /* DW_RLE_startx_endx */
			low = indexed_address(dwarf, unit, get_uleb(&cursor));
			high = indexed_address(dwarf, unit, get_uleb(&cursor));
			break;
		case 3: /* DW_RLE_startx_length */
			low = indexed_address(dwarf, unit, get_uleb(&cursor));
			high = low + get_uleb(&cursor);
			break;
		case 4: /* DW_RLE_offset_pair */
			low = base + get_uleb(&cursor);
			high = base + get_uleb(&cursor);
			break;
		case 5: /* DW_RLE_base_address */
			base = get(&cursor, unit->address_size);
			continue;
		case 6: /* DW_RLE_start_end */
			low = get(&cursor, unit->address_size);
			high = get(&cursor, unit->address_size);
			break;
		case 7: /* DW_RLE_start_length */
			low = get(&cursor, unit->address_size);
			high = low + get_uleb(&cursor);
			break;
		default:
			return true;
		}
		if (!cursor.is_bad && low < high && !add(context, low, high))
			return false;
	}
	return true;
}

/* Return false if add() did. */
static bool list_extent(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, const struct extent *extent,
			range_function add, void *context)
{
	uint64_t low, high;

	if (extent->ranges.form)
		return list_ranges(dwarf, unit, extent->ranges, add, context);
	if (!extent->low.form || !extent->high.form)
		return true;
	low = address_of(dwarf, unit, extent->low);
	high = is_address(extent->high.form) ? address_of(dwarf, unit, extent->high) : low + extent->high.number;
	return low >= high || add(context, low, high);
}

/* Read the header of the unit at an offset. False at the end of what can be read. */
static bool read_header(const struct kcovdbg_dwarf *dwarf, uint64_t offset, struct unit *unit)
{
	struct cursor cursor = open_at(dwarf, &dwarf->sections.info, offset);
	uint64_t length = get(&cursor, 4), kind = UNIT_compile;

	memset(unit, 0, sizeof(*unit));
	unit->offset = offset;
	/* 0xffffffff introduces the 64-bit format. */
	if (cursor.is_bad || length >= 0xfffffff0 || length > dwarf->sections.info.size - offset - 4)
		return false;
	unit->end = offset + 4 + length;
	unit->version = get(&cursor, 2);
	if (unit->version >= 5) {
		kind = get(&cursor, 1);
		unit->address_size = get(&cursor, 1);
		unit->abbrev = get(&cursor, 4);
		/* The ID of its other half. */
		if (kind == UNIT_skeleton)
			skip(&cursor, 8);
	} else {
		unit->abbrev = get(&cursor, 4);
		unit->address_size = get(&cursor, 1);
	}
	unit->entry = cursor.at - (const unsigned char *)dwarf->sections.info.data;
	unit->is_shared = offset >= dwarf->sections.shared_info;
	if (unit->is_shared)
		unit->abbrev = in_shared(unit->abbrev, dwarf->sections.shared_abbrev);
	/* Type units have no code. Partial units are referred to. A skeleton has the lines of a unit whose entries are elsewhere. */
	unit->is_known = !cursor.is_bad && (unit->version == 4 || unit->version == 5) &&
			 (kind == UNIT_compile || kind == UNIT_partial || kind == UNIT_skeleton) &&
			 (unit->address_size == 4 || unit->address_size == 8);
	return true;
}

static struct cursor open_unit(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, uint64_t offset)
{
	struct cursor cursor = open_at(dwarf, &dwarf->sections.info, offset);

	if (!cursor.is_bad)
		cursor.end = (const unsigned char *)dwarf->sections.info.data + unit->end;
	return cursor;
}

/* Read a unit's own entry. 0, -1 when out of memory. */
static int read_unit(struct kcovdbg_dwarf *dwarf, struct unit *unit, struct kcovdbg_unit *shown, struct abbreviations *known)
{
	struct cursor cursor;
	struct entry entry;
	uint64_t language;
	int status;

	shown->size = unit->end - unit->offset;
	if (!unit->is_known)
		return 0;
	status = read_abbreviations(dwarf, unit, known);
	if (status < 0)
		return -1;
	cursor = open_unit(dwarf, unit, unit->entry);
	if (status || !get_entry(known, &cursor, &entry)) {
		unit->is_known = false;
		return 0;
	}
	unit->has_no_return = known->has_no_return;
	/* Without a base, they start after the header of the section's first table. */
	unit->str_offsets_base = entry.str_offsets_base.form ? entry.str_offsets_base.number : 8;
	unit->addr_base = entry.addr_base.form ? entry.addr_base.number : 8;
	unit->rnglists_base = entry.rnglists_base.form ? entry.rnglists_base.number : 12;
	shown->directory = text_of(dwarf, unit, entry.directory);
	/* Files of entries that dwz moved to a unit of their own are in a line table as well. */
	unit->has_lines = entry.lines.form != 0;
	unit->lines = unit->is_shared ? in_shared(entry.lines.number, dwarf->sections.shared_line) : entry.lines.number;
	if (entry.tag != TAG_compile_unit && entry.tag != TAG_skeleton_unit)
		return 0;
	unit->extent = entry.extent;
	unit->low = address_of(dwarf, unit, entry.extent.low);
	language = entry.language.number;
	/* DW_LANG_C89, C, C99, C11, C17, and of assembly. */
	unit->is_c = language == 0x01 || language == 0x02 || language == 0x0c || language == 0x1d || language == 0x2c;
	unit->is_rust = language == 0x1c;
	shown->name = text_of(dwarf, unit, entry.name);
	unit->has_code = true;
	return 0;
}

struct kcovdbg_dwarf *kcovdbg_dwarf_new(const struct kcovdbg_sections *sections)
{
	struct kcovdbg_dwarf *dwarf = calloc(1, sizeof(*dwarf));
	struct tables known = { 0 };
	size_t unit_room = 0, shown_room = 0, i;
	struct unit unit;
	uint64_t offset = 0;

	if (!dwarf)
		return NULL;
	dwarf->sections = *sections;
	dwarf->max_steps = 1 << 20;
	for (i = 0; i < sizeof(*sections) / sizeof(struct kcovdbg_bytes); i++)
		dwarf->max_steps += MAX_READINGS * ((const struct kcovdbg_bytes *)sections)[i].size;
	while (offset < sections->info.size && read_header(dwarf, offset, &unit)) {
		if (!grow(&dwarf->units, &unit_room, dwarf->unit_count + 1, sizeof(unit)))
			goto out_of_memory;
		dwarf->units[dwarf->unit_count++] = unit;
		offset = unit.end;
	}
	if (!grow(&dwarf->shown, &shown_room, dwarf->unit_count, sizeof(*dwarf->shown)))
		goto out_of_memory;
	for (i = 0; i < dwarf->unit_count; i++) {
		memset(&dwarf->shown[i], 0, sizeof(*dwarf->shown));
		if (read_unit(dwarf, &dwarf->units[i], &dwarf->shown[i], table_of(&known, &dwarf->units[i])))
			goto out_of_memory;
	}
	free_tables(&known);
	return dwarf;

out_of_memory:
	free_tables(&known);
	kcovdbg_dwarf_free(dwarf);
	return NULL;
}

void kcovdbg_dwarf_free(struct kcovdbg_dwarf *dwarf)
{
	if (!dwarf)
		return;
	free(dwarf->units);
	free(dwarf->shown);
	free(dwarf);
}

size_t kcovdbg_dwarf_unit_count(const struct kcovdbg_dwarf *dwarf)
{
	return dwarf->unit_count;
}

const struct kcovdbg_unit *kcovdbg_dwarf_units(const struct kcovdbg_dwarf *dwarf)
{
	return dwarf->shown;
}

static size_t lower_bound(const uint64_t *addresses, size_t count, uint64_t address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (addresses[middle] < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The range that starts last, of those that start at an address or after the address before it. */
struct span {
	uint64_t low, high;
	uint32_t unit;
};

struct search {
	const uint64_t *addresses;
	size_t count;
	struct span *spans; /* Of each address. */
	uint32_t unit;
};

static bool add_unit_range(void *context, uint64_t low, uint64_t high)
{
	struct search *search = context;
	size_t first = lower_bound(search->addresses, search->count, low);
	struct span *span = search->spans + first;

	/* Of two that start at one address, keep the later unit's. */
	if (first < search->count && (span->unit == NONE || low >= span->low))
		*span = (struct span){ low, high, search->unit };
	return true;
}

int kcovdbg_dwarf_find_units(const struct kcovdbg_dwarf *dwarf, const uint64_t *addresses, size_t count, uint32_t *units)
{
	/* For each address only the range that starts last is kept. */
	struct search search = { .addresses = addresses, .count = count };
	struct span last = { .unit = NONE };
	size_t i;

	search.spans = malloc((count + 1) * sizeof(*search.spans));
	if (!search.spans)
		return -1;
	memset(search.spans, 0xff, count * sizeof(*search.spans));
	for (i = 0; i < dwarf->unit_count; i++) {
		search.unit = i;
		list_extent(dwarf, &dwarf->units[i], &dwarf->units[i].extent, add_unit_range, &search);
	}
	for (i = 0; i < count; i++) {
		if (search.spans[i].unit != NONE)
			last = search.spans[i];
		units[i] = last.unit != NONE && addresses[i] < last.high ? last.unit : NONE;
	}
	free(search.spans);
	return 0;
}

struct listing {
	uint64_t *ranges;
	size_t count, room;
};

static bool add_listed(void *context, uint64_t low, uint64_t high)
{
	struct listing *listing = context;

	if (listing->count == listing->room)
		return false;
	listing->ranges[2 * listing->count] = low;
	listing->ranges[2 * listing->count + 1] = high;
	listing->count++;
	return true;
}

size_t kcovdbg_dwarf_ranges(const struct kcovdbg_dwarf *dwarf, size_t unit, uint64_t *ranges, size_t room)
{
	struct listing listing = { .ranges = ranges, .room = room };

	if (unit < dwarf->unit_count)
		list_extent(dwarf, &dwarf->units[unit], &dwarf->units[unit].extent, add_listed, &listing);
	return listing.count;
}

/* A function, or an inlined function, that some address is in. */
struct function {
	uint64_t named; /* The entry that has its name, or leads to it. */
	uint32_t parent;
	uint32_t call_file, call_line, call_column;
	uint32_t name; /* NONE until it is looked up. */
	uint32_t call; /* The frame that it was inlined in; NONE until it is looked up. */
	bool is_inlined;
	bool is_empty; /* It has no addresses: in gcc's DWARF 4, a first range that is empty and begins with its unit ends the list. */
};

struct row {
	uint32_t file, line, column;
	bool is_known;
};

/* The strings to which paths of files are added. */
enum owner { OF_ADDRESSES, OF_ROWS, OF_DEFINITIONS, OWNERS };

struct file {
	const char *directory, *name;
	uint32_t strings[OWNERS]; /* NONE until it is looked up. */
};

/* Units share most of their headers. Linkers keep a string once: equal ones are at the same place. */
#define SEEN_DEFINITIONS (1 << 13)
#define SEEN_PATHS (1 << 10)

/* Items that a thread has added already: the last one of each slot. */
struct seen {
	struct {
		uint64_t name; /* Offset in .debug_str. */
		uint32_t file, line;
	} definitions[SEEN_DEFINITIONS];
	struct {
		const char *directory, *name;
		uint32_t string;
	} paths[OWNERS][SEEN_PATHS];
};

/* What a thread needs while it reads units; its arrays are used again for each. */
struct reader {
	const struct kcovdbg_dwarf *dwarf;
	const struct unit *unit;
	struct tables own, others; /* For units that are read, and for those that their entries refer to. */
	struct abbreviations *known;
	struct kcovdbg_locations *locations[OWNERS]; /* NULL for what is not wanted. */
	const uint64_t *addresses;
	size_t count;
	uint32_t *deepest; /* For each address: its function. */
	size_t deepest_room;
	struct row *rows;
	size_t row_room;
	struct function *functions;
	size_t function_count, function_room;
	uint32_t *parents; /* By depth. */
	size_t parent_room;
	struct file *files;
	size_t file_count, file_room;
	const char **folders;
	size_t folder_count, folder_room;
	char *path;
	size_t path_room;
	uint32_t current; /* Function whose ranges are being read. */
	bool is_hit;	  /* Whether an address is in one of them. */
	size_t steps;	  /* Not yet counted. */
	struct seen *seen;
	struct kcovdbg_found_rows *kept; /* Where rows of line tables are put, if they are wanted. */
	bool is_full;			 /* Out of memory. */
};

static uint32_t add_file_string(struct reader *reader, uint32_t index, enum owner owner);

/* Return the string of a file's path, 0 for none, NONE when out of memory. */
static inline uint32_t file_string(struct reader *reader, uint32_t index, enum owner owner)
{
	if (index < reader->file_count && reader->files[index].strings[owner] != NONE)
		return reader->files[index].strings[owner];
	return add_file_string(reader, index, owner);
}

/* Keep a range of a function where it was inlined. */
static bool keep_call(struct reader *reader, const struct function *function, uint64_t low, uint64_t high)
{
	struct kcovdbg_found_rows *kept = reader->kept;
	uint32_t file = file_string(reader, function->call_file, OF_ROWS), line = function->call_line;

	if (file == NONE)
		return false;
	if (!file || !line || line > KCOVDBG_MAX_LINE)
		return true;
	if (!grow(&kept->inlined, &kept->inlined_room, kept->inlined_count + 1, sizeof(*kept->inlined)))
		return false;
	kept->inlined[kept->inlined_count++] = (struct kcovdbg_inlined){ low, high, file, line, UINT32_MAX };
	return true;
}

/* Keep a range of the function that is being read if it was inlined, and of functions around it whose own ranges are lost. */
static bool keep_inlined(struct reader *reader, uint64_t low, uint64_t high)
{
	uint32_t at = reader->current;

	do {
		const struct function *function = &reader->functions[at];

		if (function->is_inlined && !keep_call(reader, function, low, high))
			return false;
		at = function->parent;
	} while (at != NONE && reader->functions[at].is_empty);
	return true;
}

static bool add_function_range(void *context, uint64_t low, uint64_t high)
{
	struct reader *reader = context;
	size_t first = lower_bound(reader->addresses, reader->count, low), i;

	if (low < high)
		reader->functions[reader->current].is_empty = false;
	/* Code at the address 0 was not linked. */
	if (reader->kept && low && low < high && !keep_inlined(reader, low, high)) {
		reader->is_full = true;
		return false;
	}
	/* Entries come before their children, whose ranges replace theirs. */
	for (i = first; i < reader->count && reader->addresses[i] < high; i++) {
		reader->deepest[i] = reader->current;
		reader->is_hit = true;
	}
	reader->steps += i - first;
	if (reader->steps < STEPS * STEPS)
		return true;
	i = reader->steps;
	reader->steps = 0;
	return take_steps(reader->dwarf, i);
}

static uint32_t clamp(uint64_t number)
{
	return number < UINT32_MAX ? number : 0;
}

static bool is_function(uint16_t tag)
{
	return tag == TAG_subprogram || tag == TAG_inlined_subroutine;
}

static bool can_have_functions(const struct unit *unit, uint16_t tag)
{
	switch (tag) {
	case TAG_array_type:
	case TAG_enumeration_type:
	case TAG_subroutine_type:
	case TAG_call_site:
	case TAG_GNU_call_site:
		return false;
	case TAG_structure_type:
	case TAG_union_type:
		return !unit->is_c;
	default:
		return true;
	}
}

/* Put where a reference of an entry leads to; false where that is unknown. */
static bool follow(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct value reference, uint64_t *offset)
{
	uint64_t shared = dwarf->sections.shared_info;

	if (reference.form == FORM_ref_addr)
		*offset = unit->is_shared ? in_shared(reference.number, shared) : reference.number;
	else if (reference.form == FORM_GNU_ref_alt || reference.form == FORM_ref_sup4 || reference.form == FORM_ref_sup8)
		*offset = in_shared(reference.number, shared);
	else if (reference.form >= FORM_ref1 && reference.form <= FORM_ref_udata)
		*offset = unit->offset + reference.number;
	else
		return false;
	return true;
}

/* Return the entry that has the name of a function, or leads to it: most are instances of another entry. */
static uint64_t find_named(const struct reader *reader, const struct entry *entry)
{
	struct value origin = entry->origin.form ? entry->origin : entry->specification;
	uint64_t offset;

	if (entry->name.form || entry->linkage_name.form || !follow(reader->dwarf, reader->unit, origin, &offset))
		return entry->offset;
	return offset;
}

/* Add a function that may hold addresses; is_hit tells whether it does. 0, -1 when out of memory, 1 for damage. */
static int add_function(struct reader *reader, const struct entry *entry, uint32_t parent)
{
	struct function *function;

	if (!grow(&reader->functions, &reader->function_room, reader->function_count + 1, sizeof(*function)))
		return -1;
	reader->current = reader->function_count;
	reader->is_hit = false;
	function = &reader->functions[reader->current];
	*function = (struct function){
		.named = find_named(reader, entry),
		.parent = parent,
		.call_file = clamp(entry->call_file),
		.call_line = clamp(entry->call_line),
		.call_column = clamp(entry->call_column),
		.name = NONE,
		.call = NONE,
		.is_inlined = entry->tag == TAG_inlined_subroutine,
		.is_empty = true,
	};
	if (!list_extent(reader->dwarf, reader->unit, &entry->extent, add_function_range, reader))
		return reader->is_full ? -1 : 1;
	/* Without children it is nobody's parent. */
	if (reader->is_hit || entry->has_children)
		reader->function_count++;
	return 0;
}

/* Return whether the last definition in a slot was this one; put it there. */
static bool was_seen(struct seen *seen, uint64_t name, uint32_t file, uint32_t line)
{
	size_t slot = (name ^ (uint64_t)line << 5) % SEEN_DEFINITIONS;
	bool is_same = seen->definitions[slot].name == name && seen->definitions[slot].file == file &&
		       seen->definitions[slot].line == line;

	seen->definitions[slot].name = name;
	seen->definitions[slot].file = file;
	seen->definitions[slot].line = line;
	return is_same;
}

/* Add a frame where a function is defined, if it has code. Return false when out of memory. */
static bool add_definition(struct reader *reader, const struct entry *entry)
{
	struct kcovdbg_locations *locations = reader->locations[OF_DEFINITIONS];
	uint64_t line = entry->declared_line, offset;
	const char *name;
	uint32_t file, function;

	if (!entry->is_abstract && !entry->extent.low.form && !entry->extent.ranges.form)
		return true;
	file = file_string(reader, clamp(entry->declared_file), OF_DEFINITIONS);
	if (file == NONE)
		return false;
	if (!file || !line || line > KCOVDBG_MAX_LINE)
		return true;
	if (find_string(reader->dwarf, reader->unit, entry->name, &offset) && was_seen(reader->seen, offset, file, line))
		return true;
	name = text_of(reader->dwarf, reader->unit, entry->name);
	/* Long names may be shared. */
	if (!name || !take_steps(reader->dwarf, strlen(name)))
		return true;
	function = kcovdbg_locations_string(locations, name, strlen(name));
	return function != NONE && kcovdbg_locations_frame(locations, function, file, line, 0) != NONE;
}

/* Find the function of each address, and definitions. 0, -1 when out of memory, 1 for damage. */
static int read_functions(struct reader *reader)
{
	const struct unit *unit = reader->unit;
	const unsigned char *info = reader->dwarf->sections.info.data;
	struct cursor cursor = open_unit(reader->dwarf, unit, unit->entry);
	size_t depth = 0;
	struct entry entry;
	int status;

	reader->function_count = 0;
	if (!take_steps(reader->dwarf, unit->end - unit->offset))
		return 1;
	do {
		uint32_t parent = depth ? reader->parents[depth - 1] : NONE;
		uint64_t offset = cursor.at - info;
		const struct abbreviation *abbreviation = get_abbreviation(reader->known, &cursor);
		bool has_code, has_children, may_skip;

		if (!abbreviation) {
			if (cursor.is_bad)
				return 1;
			if (depth)
				depth--;
			continue;
		}
		may_skip = !can_have_functions(unit, abbreviation->tag);
		if (!is_function(abbreviation->tag)) {
			has_children = skip_entry(reader->dwarf, unit, reader->known, abbreviation, may_skip, &cursor);
		} else {
			if (!get_attributes(reader->known, abbreviation, &cursor, &entry))
				return 1;
			entry.offset = offset;
			/* Those inside other entries, as Rust has them, are left out. */
			if (depth == 1 && entry.tag == TAG_subprogram && reader->locations[OF_DEFINITIONS] &&
			    !add_definition(reader, &entry))
				return -1;
			has_code = entry.extent.ranges.form || (entry.extent.low.form && entry.extent.high.form);
			if (has_code) {
				status = add_function(reader, &entry, parent);
				if (status)
					return status;
				parent = reader->current;
			}
			may_skip = entry.is_abstract;
			if (has_code)
				may_skip = !reader->is_hit && !reader->kept && !reader->functions[reader->current].is_empty;
			has_children = entry.has_children &&
				       !(may_skip && skip_to_sibling(reader->dwarf, unit, entry.sibling, &cursor));
		}
		if (!has_children)
			continue;
		if (may_skip) {
			skip_children(reader->dwarf, unit, reader->known, &cursor);
			continue;
		}
		if (!grow(&reader->parents, &reader->parent_room, depth + 1, sizeof(*reader->parents)))
			return -1;
		reader->parents[depth++] = parent;
	} while (depth && cursor.at < cursor.end);
	return cursor.is_bad;
}

static const struct unit *unit_at(const struct kcovdbg_dwarf *dwarf, uint64_t offset)
{
	size_t low = 0, high = dwarf->unit_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (dwarf->units[middle].offset <= offset)
			low = middle + 1;
		else
			high = middle;
	}
	return low && offset < dwarf->units[low - 1].end ? &dwarf->units[low - 1] : NULL;
}

/*
 * Return the name of a function: its own, or that of the entry it is an instance or the definition of. NULL where it has none. In
 * Rust that is the mangled one, which has the path: others are as short as "new".
 */
static const char *find_name(struct reader *reader, uint64_t offset)
{
	const struct unit *unit = reader->unit;
	struct abbreviations *known = reader->known;
	const char *name = NULL;
	int i;

	for (i = 0; i < MAX_REFERENCES; i++) {
		struct cursor cursor;
		struct value reference;
		struct entry entry;

		if (offset < unit->offset || offset >= unit->end) {
			unit = unit_at(reader->dwarf, offset);
			if (!unit || !unit->is_known)
				return name;
			known = unit == reader->unit ? reader->known : table_of(&reader->others, unit);
			if (read_abbreviations(reader->dwarf, unit, known))
				return name;
		}
		cursor = open_unit(reader->dwarf, unit, offset);
		if (cursor.is_bad || !get_entry(known, &cursor, &entry))
			return name;
		if (entry.linkage_name.form && unit->is_rust)
			return text_of(reader->dwarf, unit, entry.linkage_name);
		if (entry.name.form && !name)
			name = text_of(reader->dwarf, unit, entry.name);
		if (name && !unit->is_rust)
			return name;
		reference = entry.origin.form ? entry.origin : entry.specification;
		if (!follow(reader->dwarf, unit, reference, &offset))
			return name;
	}
	return name;
}

/* A column of a table of directories or files in a line number header of version 5. */
struct content {
	uint64_t type;
	struct field field;
};

static bool add_file(struct reader *reader, const char *directory, const char *name)
{
	if (!grow(&reader->files, &reader->file_room, reader->file_count + 1, sizeof(*reader->files)))
		return false;
	reader->files[reader->file_count++] = (struct file){ directory, name, { NONE, NONE, NONE } };
	return true;
}

static bool add_folder(struct reader *reader, const char *name)
{
	if (!grow(&reader->folders, &reader->folder_room, reader->folder_count + 1, sizeof(*reader->folders)))
		return false;
	reader->folders[reader->folder_count++] = name;
	return true;
}

static const char *folder_at(const struct reader *reader, uint64_t index)
{
	/* The first is the directory that the compiler was run in: names remain relative to it. */
	return index && index < reader->folder_count ? reader->folders[index] : NULL;
}

/* Read the directories, or the files, of a header of version 5. 0, -1 when out of memory, 1 for damage. */
static int read_names(struct reader *reader, struct cursor *cursor, bool are_files)
{
	struct content contents[16];
	uint64_t count, i, j, columns = get(cursor, 1);

	if (columns > sizeof(contents) / sizeof(*contents))
		return 1;
	for (i = 0; i < columns; i++) {
		uint64_t form;

		contents[i].type = get_uleb(cursor);
		form = get_uleb(cursor);
		contents[i].field = (struct field){ .form = form, .size = form_size(form, reader->unit->address_size) };
		if (contents[i].field.size == -2)
			return 1;
	}
	count = get_uleb(cursor);
	/* Each takes a byte or more. */
	if (count > (size_t)(cursor->end - cursor->at) || count > MAX_FILES)
		return 1;
	for (i = 0; i < count && !cursor->is_bad && columns; i++) {
		const char *name = NULL;
		uint64_t folder = 0;

		for (j = 0; j < columns; j++) {
			struct value value = get_value(cursor, &contents[j].field);

			/* DW_LNCT_path, DW_LNCT_directory_index */
			if (contents[j].type == 1)
				name = text_of(reader->dwarf, reader->unit, value);
			else if (contents[j].type == 2)
				folder = value.number;
		}
		if (cursor->is_bad)
			break;
		if (are_files ? !add_file(reader, folder_at(reader, folder), name) : !add_folder(reader, name))
			return -1;
	}
	return cursor->is_bad;
}

/* The same of versions 2 to 4. */
static int read_old_names(struct reader *reader, struct cursor *cursor)
{
	const char *name;

	/* Counted from 1. */
	if (!add_folder(reader, NULL) || !add_file(reader, NULL, NULL))
		return -1;
	while ((name = get_string(cursor)) && *name) {
		if (reader->folder_count == MAX_FILES)
			return 1;
		if (!add_folder(reader, name))
			return -1;
	}
	while ((name = get_string(cursor)) && *name) {
		uint64_t folder = get_uleb(cursor);

		if (reader->file_count == MAX_FILES)
			return 1;

		get_uleb(cursor);
		get_uleb(cursor);
		if (!add_file(reader, folder_at(reader, folder), name))
			return -1;
	}
	return cursor->is_bad;
}

struct line_state {
	uint64_t address;
	uint32_t file, line, column;
	bool is_first; /* Of a sequence. */
	bool is_statement, is_statement_first;
	size_t next;  /* First address that may be in the row. */
	size_t steps; /* Addresses that rows were found for. */
	struct row row;
	uint64_t row_address;
};

static bool grow_rows(struct kcovdbg_found_rows *kept)
{
	size_t rooms[] = { kept->room, kept->room, kept->room };
	bool has_room = grow(&kept->addresses, &rooms[0], kept->count + 1, sizeof(*kept->addresses)) &&
			grow(&kept->files, &rooms[1], kept->count + 1, sizeof(*kept->files)) &&
			grow(&kept->lines, &rooms[2], kept->count + 1, sizeof(*kept->lines));

	if (has_room)
		kept->room = rooms[0];
	return has_room;
}

static bool keep_row(struct reader *reader, const struct line_state *state, bool is_end)
{
	struct kcovdbg_found_rows *kept = reader->kept;
	uint32_t file = is_end ? NONE : file_string(reader, state->file, OF_ROWS);
	uint32_t line = state->line <= KCOVDBG_MAX_LINE ? state->line : 0;
	size_t last = kept->count - 1;

	if (file == NONE && !is_end)
		return false;
	if (state->is_statement && !is_end)
		line |= KCOVDBG_ROW_STATEMENT;
	/* A fifth of the rows of gcc differs from the row before in the column alone. */
	if (kept->count && kept->addresses[last] == state->address && kept->files[last] == file && kept->lines[last] == line)
		return true;
	if (kept->count == kept->room && !grow_rows(kept))
		return false;
	kept->addresses[kept->count] = state->address;
	kept->files[kept->count] = file;
	kept->lines[kept->count++] = line;
	return true;
}

/* A row ends where the next one starts. */
static void add_row(struct reader *reader, struct line_state *state, bool is_end)
{
	if (reader->kept)
		reader->is_full |= !keep_row(reader, state, is_end);
	if (!state->is_first) {
		if (state->address < state->row_address)
			state->is_first = true;
		for (; !state->is_first && state->next < reader->count && reader->addresses[state->next] < state->address;
		     state->next++, state->steps++)
			reader->rows[state->next] = state->row;
	}
	if (state->is_first)
		state->next = lower_bound(reader->addresses, reader->count, state->address);
	state->is_first = is_end;
	state->row = (struct row){ state->file, state->line, state->column, true };
	state->row_address = state->address;
}

static void start_sequence(struct line_state *state)
{
	state->address = 0;
	state->file = 1;
	state->line = 1;
	state->column = 0;
	state->is_first = true;
	state->is_statement = state->is_statement_first;
}

/* Find the row of each address. 0, -1 when out of memory, 1 for damage. */
static int read_lines(struct reader *reader)
{
	const struct unit *unit = reader->unit;
	const unsigned char *lengths, *program;
	struct line_state state = { 0 };
	struct cursor cursor;
	uint64_t length, version, size, address_size = unit->address_size;
	size_t most_steps;
	unsigned int min_length, line_range, opcode_base;
	int line_base, status;

	reader->file_count = reader->folder_count = 0;
	if (!unit->has_lines)
		return 0;
	cursor = open_at(reader->dwarf, &reader->dwarf->sections.line, unit->lines);
	length = get(&cursor, 4);
	if (cursor.is_bad || length >= 0xfffffff0 || length > (size_t)(cursor.end - cursor.at) ||
	    !take_steps(reader->dwarf, length))
		return 1;
	cursor.end = cursor.at + length;
	version = get(&cursor, 2);
	if (version < 2 || version > 5)
		return 1;
	if (version == 5) {
		address_size = get(&cursor, 1);
		get(&cursor, 1);
	}
	size = get(&cursor, 4);
	if (cursor.is_bad || size > (size_t)(cursor.end - cursor.at))
		return 1;
	program = cursor.at + size;
	min_length = get(&cursor, 1);
	if (version >= 4)
		get(&cursor, 1);
	state.is_statement_first = get(&cursor, 1);
	line_base = (int8_t)get(&cursor, 1);
	line_range = get(&cursor, 1);
	opcode_base = get(&cursor, 1);
	lengths = cursor.at;
	skip(&cursor, opcode_base ? opcode_base - 1 : 0);
	if (cursor.is_bad || !line_range || !opcode_base || address_size > 8)
		return 1;
	if (version == 5) {
		status = read_names(reader, &cursor, false);
		if (!status)
			status = read_names(reader, &cursor, true);
	} else {
		status = read_old_names(reader, &cursor);
	}
	/* The rows that a unit without code refers to are another one's. */
	if (status || !unit->has_code)
		return status;

	cursor.at = program;
	start_sequence(&state);
	most_steps = MAX_READINGS * reader->count;
	while (cursor.at < cursor.end && !cursor.is_bad && !reader->is_full && state.steps <= most_steps) {
		unsigned int opcode = *cursor.at++;
		unsigned int i;

		if (opcode >= opcode_base) {
			opcode -= opcode_base;
			state.address += opcode / line_range * min_length;
			state.line += line_base + (int)(opcode % line_range);
			add_row(reader, &state, false);
			continue;
		}
		switch (opcode) {
		case 0: {
			uint64_t extended = get_uleb(&cursor);
			const unsigned char *end;

			if (!extended || extended > (size_t)(cursor.end - cursor.at))
				return 1;
			end = cursor.at + extended;
			switch (*cursor.at++) {
			case 1: /* DW_LNE_end_sequence */
				add_row(reader, &state, true);
				start_sequence(&state);
				break;
			case 2: /* DW_LNE_set_address */
				if (extended - 1 > 8)
					return 1;
				state.address = get(&cursor, extended - 1);
				break;
			}
			cursor.at = end;
			break;
		}
		case 1: /* DW_LNS_copy */
			add_row(reader, &state, false);
			break;
		case 2: /* DW_LNS_advance_pc */
			state.address += get_uleb(&cursor) * min_length;
			break;
		case 3: /* DW_LNS_advance_line */
			state.line += get_sleb(&cursor);
			break;
		case 4: /* DW_LNS_set_file */
			state.file = clamp(get_uleb(&cursor));
			break;
		case 5: /* DW_LNS_set_column */
			state.column = clamp(get_uleb(&cursor));
			break;
		case 6: /* DW_LNS_negate_stmt */
			state.is_statement = !state.is_statement;
			break;
		case 7:	 /* DW_LNS_set_basic_block */
		case 10: /* DW_LNS_set_prologue_end */
		case 11: /* DW_LNS_set_epilogue_begin */
			break;
		case 8: /* DW_LNS_const_add_pc */
			state.address += (255 - opcode_base) / line_range * min_length;
			break;
		case 9: /* DW_LNS_fixed_advance_pc */
			state.address += get(&cursor, 2);
			break;
		default:
			for (i = 0; i < lengths[opcode - 1]; i++)
				get_uleb(&cursor);
		}
	}
	if (reader->is_full)
		return -1;
	return cursor.is_bad || cursor.at < cursor.end;
}

/*
 * Resolve "..", "." and empty components of a path in place, as posixpath.normpath() does, but for a leading "./", which paths of
 * headers have in the kernel. Return the new size.
 */
static size_t normalize_path(char *path, size_t size)
{
	size_t start = 0, at, end, out;

	if (size && path[0] == '/')
		start = 1;
	else if (size >= 2 && path[0] == '.' && path[1] == '/')
		start = 2;
	out = start;
	for (at = start; at < size; at = end + 1) {
		for (end = at; end < size && path[end] != '/';)
			end++;
		if (end == at || (end - at == 1 && path[at] == '.'))
			continue;
		if (end - at == 2 && path[at] == '.' && path[at + 1] == '.') {
			size_t last = out;

			while (last > start && path[last - 1] != '/')
				last--;
			if (out > start && !(out - last == 2 && path[last] == '.' && path[last + 1] == '.')) {
				out = last > start ? last - 1 : start;
				continue;
			}
			/* Nothing is above the root; "./.." is "..". */
			if (start == 1)
				continue;
			if (out == 2 && start == 2)
				start = out = 0;
		}
		if (out > start)
			path[out++] = '/';
		memmove(path + out, path + at, end - at);
		out += end - at;
	}
	return out;
}

/* Return the string of a path, NONE when out of memory. */
static uint32_t path_string(struct reader *reader, const struct file *file, enum owner owner)
{
	size_t name = strlen(file->name), size;
	size_t folder = file->directory && *file->name != '/' ? strlen(file->directory) : 0;

	if (!grow(&reader->path, &reader->path_room, folder + name + 1, 1))
		return NONE;
	if (folder)
		memcpy(reader->path, file->directory, folder);
	if (folder && reader->path[folder - 1] != '/')
		reader->path[folder++] = '/';
	memcpy(reader->path + folder, file->name, name);
	size = normalize_path(reader->path, folder + name);
	return kcovdbg_locations_string(reader->locations[owner], reader->path, size);
}

/* The same for a file whose string was not looked up yet. */
static uint32_t add_file_string(struct reader *reader, uint32_t index, enum owner owner)
{
	struct file *file;
	uintptr_t place;
	size_t slot;

	if (index >= reader->file_count || !reader->files[index].name)
		return 0;
	file = &reader->files[index];
	place = (uintptr_t)file->name ^ (uintptr_t)file->directory << 3;
	slot = place % SEEN_PATHS;
	if (reader->seen->paths[owner][slot].name != file->name ||
	    reader->seen->paths[owner][slot].directory != file->directory) {
		uint32_t string = path_string(reader, file, owner);

		if (string == NONE)
			return NONE;
		reader->seen->paths[owner][slot].name = file->name;
		reader->seen->paths[owner][slot].directory = file->directory;
		reader->seen->paths[owner][slot].string = string;
	}
	file->strings[owner] = reader->seen->paths[owner][slot].string;
	return file->strings[owner];
}

static uint32_t name_string(struct reader *reader, struct function *function)
{
	const char *name;

	if (function->name == NONE) {
		name = find_name(reader, function->named);
		function->name = kcovdbg_locations_string(reader->locations[OF_ADDRESSES], name, name ? strlen(name) : 0);
	}
	return function->name;
}

/* Return the number of the frame of a place in a function, which may be none, NONE when out of memory. */
static uint32_t make_frame(struct reader *reader, uint32_t at, uint32_t file, uint32_t line, uint32_t column)
{
	uint32_t name = at == NONE ? 0 : name_string(reader, &reader->functions[at]);

	if (name == NONE || file == NONE)
		return NONE;
	return kcovdbg_locations_frame(reader->locations[OF_ADDRESSES], name, file, line, column);
}

/* Return the frame that a function was inlined in. */
static uint32_t call_frame(struct reader *reader, struct function *function)
{
	if (function->call == NONE) {
		uint32_t file = file_string(reader, function->call_file, OF_ADDRESSES);

		function->call = make_frame(reader, function->parent, file, function->call_line, function->call_column);
	}
	return function->call;
}

/* Return the number of an address's chain, NONE when out of memory. */
static uint32_t make_chain(struct reader *reader, size_t index)
{
	struct kcovdbg_locations *locations = reader->locations[OF_ADDRESSES];
	const struct row *row = &reader->rows[index];
	uint32_t chain[MAX_CHAIN], at = reader->deepest[index];
	uint32_t file = row->is_known ? file_string(reader, row->file, OF_ADDRESSES) : 0;
	size_t count = 1;

	if (at == NONE && !file)
		return kcovdbg_locations_chain(locations, NULL, 0);
	chain[0] = make_frame(reader, at, file, file ? row->line : 0, file ? row->column : 0);
	while (chain[count - 1] != NONE && at != NONE && reader->functions[at].is_inlined && count < MAX_CHAIN) {
		struct function *function = &reader->functions[at];

		at = function->parent;
		if (at != NONE)
			chain[count++] = call_frame(reader, function);
	}
	return chain[count - 1] == NONE ? NONE : kcovdbg_locations_chain(locations, chain, count);
}

/* 0, -1 when out of memory, 1 for damage. */
static int read_contents(struct reader *reader, uint32_t *chains)
{
	size_t i;
	int status;

	if (!grow(&reader->deepest, &reader->deepest_room, reader->count, sizeof(*reader->deepest)) ||
	    !grow(&reader->rows, &reader->row_room, reader->count, sizeof(*reader->rows)))
		return -1;
	if (reader->count) {
		memset(reader->deepest, 0xff, reader->count * sizeof(*reader->deepest));
		memset(reader->rows, 0, reader->count * sizeof(*reader->rows));
	}
	reader->known = table_of(&reader->own, reader->unit);
	status = read_abbreviations(reader->dwarf, reader->unit, reader->known);
	/* Definitions are in files that the line table has. */
	if (!status)
		status = read_lines(reader);
	if (!status)
		status = read_functions(reader);
	if (status)
		return status;
	for (i = 0; i < reader->count; i++) {
		chains[i] = make_chain(reader, i);
		if (chains[i] == NONE)
			return -1;
	}
	return 0;
}

static void free_reader(struct reader *reader)
{
	free_tables(&reader->own);
	free_tables(&reader->others);
	free(reader->deepest);
	free(reader->rows);
	free(reader->functions);
	free(reader->parents);
	free(reader->files);
	free(reader->folders);
	free(reader->path);
	free(reader->seen);
}

void kcovdbg_rows_free(struct kcovdbg_found_rows *found)
{
	free(found->addresses);
	free(found->files);
	free(found->lines);
	free(found->inlined);
	*found = (struct kcovdbg_found_rows){ 0 };
}

ptrdiff_t kcovdbg_dwarf_read(const struct kcovdbg_dwarf *dwarf, const uint32_t *units, const size_t *ends, size_t unit_count,
			     const uint64_t *addresses, size_t count, const struct kcovdbg_contents *contents, uint32_t *chains)
{
	struct reader reader = {
		.dwarf = dwarf,
		.locations = { contents->locations, contents->row_files, contents->definitions },
		.kept = contents->rows,
	};
	size_t i, start = 0;
	ptrdiff_t unknown = 0;

	for (i = 0; i < unit_count; start = ends[i++])
		if (ends[i] < start || ends[i] > count)
			return -2;
	if (start != count)
		return -2;
	reader.seen = calloc(1, sizeof(*reader.seen));
	if (!reader.seen)
		return -1;
	start = 0;
	for (i = 0; i < unit_count && unknown >= 0; start = ends[i++]) {
		int status = 1;

		reader.addresses = addresses + start;
		reader.count = ends[i] - start;
		if (units[i] < dwarf->unit_count && dwarf->units[units[i]].is_known) {
			reader.unit = &dwarf->units[units[i]];
			status = read_contents(&reader, chains + start);
		}
		if (status && reader.count)
			memset(chains + start, 0xff, reader.count * sizeof(*chains));
		unknown = status < 0 ? -1 : unknown + status;
	}
	free_reader(&reader);
	return unknown;
}

/* Begin to read the entries of a unit, behind its own. */
static bool open_entries(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct abbreviations *known,
			 struct cursor *cursor)
{
	struct entry entry;

	if (!unit->is_known || read_abbreviations(dwarf, unit, known) || !take_steps(dwarf, unit->end - unit->offset))
		return false;
	*cursor = open_unit(dwarf, unit, unit->entry);
	return get_entry(known, cursor, &entry) && entry.has_children;
}

/* The size of the type that an entry refers to; 0 where it is unknown. */
static uint64_t type_size(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, struct abbreviations *known,
			  struct value reference)
{
	uint64_t offset;
	int i;

	for (i = 0; i < MAX_REFERENCES && follow(dwarf, unit, reference, &offset); i++) {
		struct cursor cursor;
		struct entry entry;

		unit = unit_at(dwarf, offset);
		if (!unit || !unit->is_known || read_abbreviations(dwarf, unit, known))
			return 0;
		cursor = open_unit(dwarf, unit, offset);
		if (cursor.is_bad || !get_entry(known, &cursor, &entry))
			return 0;
		if (entry.byte_size.form)
			return entry.byte_size.number;
		reference = entry.type;
	}
	return 0;
}

/* Put the members of a structure whose entry was read; those without a name or a fixed place are left out. */
static size_t read_members(const struct kcovdbg_dwarf *dwarf, const struct unit *unit, const struct abbreviations *known,
			   struct cursor *cursor, struct kcovdbg_member *members, size_t room)
{
	struct abbreviations other = { .are_types = true };
	struct entry entry;
	size_t count = 0;

	while (count < room && get_entry(known, cursor, &entry)) {
		const char *name = entry.tag == TAG_member ? text_of(dwarf, unit, entry.name) : NULL;

		skip_children_of(dwarf, unit, known, &entry, cursor);
		if (!name || entry.member_location.form == FORM_exprloc || entry.member_location.form == FORM_block1)
			continue;
		members[count].name = name;
		members[count].offset = entry.member_location.number;
		members[count++].size = type_size(dwarf, unit, &other, entry.type);
	}
	free_abbreviations(&other);
	return count;
}

size_t kcovdbg_dwarf_structure(const struct kcovdbg_dwarf *dwarf, const char *name, uint64_t *size,
			       struct kcovdbg_member *members, size_t room)
{
	struct abbreviations known = { .are_types = true };
	size_t i, count = 0;

	for (i = 0; i < dwarf->unit_count && !count; i++) {
		const struct unit *unit = &dwarf->units[i];
		struct cursor cursor;
		struct entry entry;

		if (!open_entries(dwarf, unit, &known, &cursor))
			continue;
		while (!count && cursor.at < cursor.end && get_entry(&known, &cursor, &entry)) {
			const char *found;

			if (!entry.has_children)
				continue;
			/* A declaration has neither members nor a size. */
			found = entry.tag == TAG_structure_type && entry.byte_size.form ? text_of(dwarf, unit, entry.name)
											: NULL;
			/* Long names may be shared. */
			if (found && !take_steps(dwarf, strlen(found)))
				break;
			if (found && !strcmp(found, name)) {
				*size = entry.byte_size.number;
				count = read_members(dwarf, unit, &known, &cursor, members, room);
			} else {
				skip_children_of(dwarf, unit, &known, &entry, &cursor);
			}
		}
	}
	free_abbreviations(&known);
	return count;
}

struct no_returns {
	uint64_t *addresses;
	size_t count, room;
};

static bool add_no_return(void *context, uint64_t low, uint64_t high)
{
	struct no_returns *found = context;

	(void)high;
	if (found->count < found->room)
		found->addresses[found->count] = low;
	found->count++;
	return true;
}

size_t kcovdbg_dwarf_no_returns(const struct kcovdbg_dwarf *dwarf, uint64_t *addresses, size_t room)
{
	struct no_returns found = { .addresses = addresses, .room = room };
	struct abbreviations known = { 0 };
	size_t i;

	for (i = 0; i < dwarf->unit_count; i++) {
		const struct unit *unit = &dwarf->units[i];
		struct cursor cursor;
		struct entry entry;

		if (!unit->has_no_return || !unit->has_code || !open_entries(dwarf, unit, &known, &cursor))
			continue;
		while (cursor.at < cursor.end && get_entry(&known, &cursor, &entry)) {
			if (entry.is_no_return)
				list_extent(dwarf, unit, &entry.extent, add_no_return, &found);
			skip_children_of(dwarf, unit, &known, &entry, &cursor);
		}
	}
	free_abbreviations(&known);
	return found.count;
}
