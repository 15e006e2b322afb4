// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "hash.h"
#include "locations.h"

#define NO_ID UINT32_MAX
#define MAX_IDS (1U << 30)
/* A kernel with a million points has strings of 10 MiB and chains of 20 MiB. */
#define MAX_TEXT (256U << 20)
#define MAX_CHAIN_FRAMES (64U << 20)
/* Limit for the average number of slots that an item needs. With hashes as good as random, more than two are rare. */
#define MAX_PROBES 32
#define MIN_PROBES (1U << 20)

/* Number of hashes that are computed ahead of their look-up, which gives memory time to fetch their slots. */
#define AHEAD 16

/* A slot has a part of the hash, so that most other items need not be compared. */
struct slot {
	uint32_t number; /* NO_ID where there is none. */
	uint32_t hash;
};

/* Open addressing. */
struct table {
	struct slot *slots;
	size_t mask;
	size_t count;
};

struct frame {
	uint32_t function, file, line, column;
};

struct kcovdbg_locations {
	struct hash_key key;
	uint64_t lookups, probes;
	struct table strings, frames;
	struct table chains; /* The chains that were searched for; there may be more. */
	char *text;
	size_t text_size, text_room;
	size_t *string_ends;
	size_t string_room;
	struct frame *frame;
	size_t frame_room;
	uint32_t *chain_ends;
	size_t chain_count, chain_room;
	uint32_t *chain_frames;
	size_t chain_frame_count, chain_frame_room;
};

static void put_slot(struct slot *slots, size_t mask, struct slot item)
{
	size_t slot = item.hash & mask;

	while (slots[slot].number != NO_ID)
		slot = (slot + 1) & mask;
	slots[slot] = item;
}

static __attribute__((noinline)) bool grow_table(struct table *table)
{
	size_t count = table->slots ? table->mask + 1 : 0, grown_count = count ? 2 * count : 256, i;
	struct slot *grown = malloc(grown_count * sizeof(*grown));

	if (!grown)
		return false;
	memset(grown, 0xff, grown_count * sizeof(*grown));
	for (i = 0; i < count; i++)
		if (table->slots[i].number != NO_ID)
			put_slot(grown, grown_count - 1, table->slots[i]);
	free(table->slots);
	table->slots = grown;
	table->mask = grown_count - 1;
	return true;
}

/* Iterate over the numbers of the items that may have a hash. */
#define FOR_EACH_SAME(locations, table, wanted, slot, id) \
	for (size_t slot = (wanted) & (table)->mask; (table)->slots[slot].number != NO_ID; \
	     slot = (slot + 1) & (table)->mask, (locations)->probes++) \
		for (uint32_t id = (table)->slots[slot].number, once = 1; once && (table)->slots[slot].hash == (wanted); \
		     once = 0)

static void add_hash(struct table *table, uint32_t hash, uint32_t id)
{
	put_slot(table->slots, table->mask, (struct slot){ id, hash });
	table->count++;
}

/* Make room for one more item. */
static inline bool is_ready(struct kcovdbg_locations *locations, struct table *table)
{
	if (locations->probes > MIN_PROBES + MAX_PROBES * locations->lookups++ || table->count >= MAX_IDS)
		return false;
	return (table->slots && table->count * 2 < table->mask) || grow_table(table);
}

static const char *string_of(const struct kcovdbg_locations *locations, uint32_t id, size_t *size)
{
	size_t start = id ? locations->string_ends[id - 1] : 0;

	*size = locations->string_ends[id] - start - 1;
	return locations->text + start;
}

uint32_t kcovdbg_locations_string(struct kcovdbg_locations *locations, const char *text, size_t size)
{
	struct table *table = &locations->strings;
	uint32_t hash, new;

	if (!text)
		return 0;
	if (!is_ready(locations, table) || size >= MAX_TEXT - locations->text_size)
		return NO_ID;
	hash = hash_bytes(locations->key, text, size);
	FOR_EACH_SAME(locations, table, hash, slot, id)
	{
		size_t known;
		const char *other = string_of(locations, id, &known);

		if (known == size && !memcmp(other, text, size))
			return id + 1;
	}
	if (!grow(&locations->text, &locations->text_room, locations->text_size + size + 1, 1) ||
	    !grow(&locations->string_ends, &locations->string_room, table->count + 1, sizeof(*locations->string_ends)))
		return NO_ID;
	new = table->count;
	add_hash(table, hash, new);
	memcpy(locations->text + locations->text_size, text, size);
	locations->text[locations->text_size + size] = 0;
	locations->text_size += size + 1;
	locations->string_ends[new] = locations->text_size;
	return new + 1;
}

static uint32_t hash_frame(const struct kcovdbg_locations *locations, struct frame frame)
{
	uint64_t hash = mix(locations->key, locations->key.start, (uint64_t)frame.function << 32 | frame.file);

	return mix(locations->key, hash, (uint64_t)frame.line << 32 | frame.column);
}

static uint32_t find_frame(struct kcovdbg_locations *locations, struct frame frame, uint32_t hash)
{
	struct table *table = &locations->frames;
	uint32_t new;

	if (!is_ready(locations, table))
		return NO_ID;
	FOR_EACH_SAME(locations, table, hash, slot, id)
	{
		if (!memcmp(&locations->frame[id], &frame, sizeof(frame)))
			return id;
	}
	if (!grow(&locations->frame, &locations->frame_room, table->count + 1, sizeof(frame)))
		return NO_ID;
	new = table->count;
	add_hash(table, hash, new);
	locations->frame[new] = frame;
	return new;
}

uint32_t kcovdbg_locations_frame(struct kcovdbg_locations *locations, uint32_t function, uint32_t file, uint32_t line,
				 uint32_t column)
{
	struct frame frame = { function, file, line, column };

	return find_frame(locations, frame, hash_frame(locations, frame));
}

static uint32_t hash_chain(const struct kcovdbg_locations *locations, const uint32_t *frames, size_t count)
{
	return hash_bytes(locations->key, frames, count * sizeof(*frames));
}

/* Make room for more chains, and for their frames. */
static bool has_room(struct kcovdbg_locations *locations, size_t chain_count, size_t frame_count)
{
	size_t chains = locations->chain_count + chain_count, frames = locations->chain_frame_count + frame_count;

	return chains <= MAX_IDS && frames <= MAX_CHAIN_FRAMES &&
	       grow(&locations->chain_ends, &locations->chain_room, chains, sizeof(*locations->chain_ends)) &&
	       grow(&locations->chain_frames, &locations->chain_frame_room, frames, sizeof(*locations->chain_frames));
}

static uint32_t find_chain(struct kcovdbg_locations *locations, const uint32_t *frames, size_t count, uint32_t hash)
{
	struct table *table = &locations->chains;

	if (!is_ready(locations, table))
		return NO_ID;
	FOR_EACH_SAME(locations, table, hash, slot, id)
	{
		size_t start = id ? locations->chain_ends[id - 1] : 0;

		if (locations->chain_ends[id] - start == count &&
		    (!count || !memcmp(locations->chain_frames + start, frames, count * sizeof(*frames))))
			return id;
	}
	if (!has_room(locations, 1, count))
		return NO_ID;
	add_hash(table, hash, locations->chain_count);
	if (count)
		memcpy(locations->chain_frames + locations->chain_frame_count, frames, count * sizeof(*frames));
	locations->chain_frame_count += count;
	locations->chain_ends[locations->chain_count] = locations->chain_frame_count;
	return locations->chain_count++;
}

uint32_t kcovdbg_locations_chain(struct kcovdbg_locations *locations, const uint32_t *frames, size_t count)
{
	return find_chain(locations, frames, count, hash_chain(locations, frames, count));
}

struct kcovdbg_locations *kcovdbg_locations_new(void)
{
	struct kcovdbg_locations *locations = calloc(1, sizeof(*locations));

	if (locations)
		locations->key = new_hash_key();
	return locations;
}

static void free_table(struct table *table)
{
	free(table->slots);
}

void kcovdbg_locations_free(struct kcovdbg_locations *locations)
{
	if (!locations)
		return;
	free_table(&locations->strings);
	free_table(&locations->frames);
	free_table(&locations->chains);
	free(locations->text);
	free(locations->string_ends);
	free(locations->frame);
	free(locations->chain_ends);
	free(locations->chain_frames);
	free(locations);
}

void kcovdbg_locations_arrays(const struct kcovdbg_locations *locations, struct kcovdbg_location_arrays *arrays)
{
	arrays->text = locations->text;
	arrays->text_size = locations->text_size;
	arrays->frames = (const uint32_t *)locations->frame;
	arrays->frame_count = locations->frames.count;
	arrays->chain_ends = locations->chain_ends;
	arrays->chain_count = locations->chain_count;
	arrays->chain_frames = locations->chain_frames;
	arrays->chain_frame_count = locations->chain_frame_count;
	arrays->probes = locations->probes;
}

int kcovdbg_locations_strings(struct kcovdbg_locations *locations, const char *text, size_t size, uint32_t *numbers,
			      size_t count)
{
	size_t i, length;

	for (i = 0; i < count; i++) {
		const char *end = size ? memchr(text, 0, size) : NULL;

		if (!end)
			return -2;
		length = end - text;
		numbers[i] = kcovdbg_locations_string(locations, text, length);
		if (numbers[i] == NO_ID)
			return -1;
		text += length + 1;
		size -= length + 1;
	}
	return size ? -2 : 0;
}

/* Fetch the first slot of a hash. */
static void prefetch(const struct table *table, uint32_t hash)
{
	if (table->slots)
		__builtin_prefetch(&table->slots[hash & table->mask]);
}

static int add_frames(struct kcovdbg_locations *locations, const struct kcovdbg_location_arrays *more, const uint32_t *strings,
		      size_t string_count, uint32_t *frames)
{
	struct frame waiting[AHEAD];
	uint32_t hashes[AHEAD];
	size_t i;

	for (i = 0; i < more->frame_count + AHEAD; i++) {
		const uint32_t *frame;
		size_t at = i % AHEAD;

		if (i >= AHEAD) {
			frames[i - AHEAD] = find_frame(locations, waiting[at], hashes[at]);
			if (frames[i - AHEAD] == NO_ID)
				return -1;
		}
		if (i >= more->frame_count)
			continue;
		frame = more->frames + 4 * i;
		if (frame[0] > string_count || frame[1] > string_count)
			return -2;
		waiting[at] = (struct frame){ strings[frame[0]], strings[frame[1]], frame[2], frame[3] };
		hashes[at] = hash_frame(locations, waiting[at]);
		prefetch(&locations->frames, hashes[at]);
	}
	return 0;
}

/* Replace the numbers of the chains' frames by their numbers here. Return -2 when one is out of range. */
static int translate_chains(const struct kcovdbg_location_arrays *more, const uint32_t *frames, uint32_t *chain_frames)
{
	size_t i, start = 0;

	for (i = 0; i < more->chain_count; i++) {
		if (more->chain_ends[i] < start || more->chain_ends[i] > more->chain_frame_count)
			return -2;
		start = more->chain_ends[i];
	}
	for (i = 0; i < start; i++) {
		if (more->chain_frames[i] >= more->frame_count)
			return -2;
		chain_frames[i] = frames[more->chain_frames[i]];
	}
	return 0;
}

/* Add chains without searching for equal ones. */
static int append_chains(struct kcovdbg_locations *locations, const struct kcovdbg_location_arrays *more,
			 const uint32_t *frames, uint32_t *chains)
{
	size_t count = more->chain_count, frame_count = count ? more->chain_ends[count - 1] : 0, i;

	if (!has_room(locations, count, frame_count))
		return -1;
	for (i = 0; i < count; i++) {
		chains[i] = locations->chain_count + i;
		locations->chain_ends[chains[i]] = locations->chain_frame_count + more->chain_ends[i];
	}
	if (frame_count)
		memcpy(locations->chain_frames + locations->chain_frame_count, frames, frame_count * sizeof(*frames));
	locations->chain_count += count;
	locations->chain_frame_count += frame_count;
	return 0;
}

static int add_chains(struct kcovdbg_locations *locations, const struct kcovdbg_location_arrays *more, const uint32_t *frames,
		      uint32_t *chains)
{
	const uint32_t *ends = more->chain_ends;
	uint32_t hashes[AHEAD];
	size_t i, start = 0, first = 0;

	for (i = 0; i < more->chain_count + AHEAD; i++) {
		size_t at = i % AHEAD;

		if (i >= AHEAD) {
			size_t end = ends[i - AHEAD];

			chains[i - AHEAD] = find_chain(locations, frames + start, end - start, hashes[at]);
			if (chains[i - AHEAD] == NO_ID)
				return -1;
			start = end;
		}
		if (i >= more->chain_count)
			continue;
		hashes[at] = hash_chain(locations, frames + first, ends[i] - first);
		prefetch(&locations->chains, hashes[at]);
		first = ends[i];
	}
	return 0;
}

int kcovdbg_locations_add(struct kcovdbg_locations *locations, const struct kcovdbg_location_arrays *more, int are_new,
			  uint32_t *chains)
{
	uint32_t *strings, *frames, *chain;
	size_t count = 0, i;
	int status = -1;

	if (more->text_size && more->text[more->text_size - 1])
		return -2;
	for (i = 0; i < more->text_size; i++)
		count += !more->text[i];
	strings = malloc((count + 1) * sizeof(*strings));
	frames = malloc((more->frame_count + 1) * sizeof(*frames));
	chain = malloc((more->chain_frame_count + 1) * sizeof(*chain));
	if (strings && frames && chain) {
		strings[0] = 0;
		status = kcovdbg_locations_strings(locations, more->text, more->text_size, strings + 1, count);
	}
	if (!status)
		status = add_frames(locations, more, strings, count, frames);
	if (!status)
		status = translate_chains(more, frames, chain);
	if (!status)
		status = (are_new ? append_chains : add_chains)(locations, more, chain, chains);
	free(strings);
	free(frames);
	free(chain);
	return status;
}

int kcovdbg_locations_common(struct kcovdbg_locations *locations, const uint32_t *chains, size_t count, uint32_t *common)
{
	bool is_same = true, is_one = true;
	uint32_t outer = NO_ID;
	size_t i;

	for (i = 0; i < count; i++) {
		uint32_t chain = chains[i];
		size_t start, end;

		if (chain >= locations->chain_count)
			return -2;
		start = chain ? locations->chain_ends[chain - 1] : 0;
		end = locations->chain_ends[chain];
		is_same = is_same && chain == chains[0];
		if (start < end) {
			const struct frame *frame = &locations->frame[locations->chain_frames[end - 1]];
			uint32_t found = kcovdbg_locations_frame(locations, frame->function, frame->file, 0, 0);

			if (found == NO_ID)
				return -1;
			if (outer == NO_ID)
				outer = found;
			is_one = is_one && outer == found;
		}
	}
	if (count && is_same)
		*common = chains[0];
	else
		*common = kcovdbg_locations_chain(locations, &outer, is_one && outer != NO_ID);
	return *common == NO_ID ? -1 : 0;
}
