// SPDX-License-Identifier: LGPL-2.1-or-later
/* A parser of mount options: a switch, gotos, nested conditions. */
#include "kernel.h"

static int read_number(const char **text, int *number)
{
	int value = 0, digits = 0;

	while (**text >= '0' && **text <= '9') {
		value = value * 10 + **text - '0';
		(*text)++;
		if (++digits > 6)
			return -ERANGE;
	}
	if (!digits)
		return -EINVAL;
	*number = value;
	return 0;
}

static noinline int set_flag(unsigned int *flags, char name, bool on)
{
	unsigned int bit;

	switch (name) {
	case 'a':
		bit = 1;
		break;
	case 'b':
		bit = 2;
		break;
	case 'c':
		bit = 64;
		break;
	case 'd':
		if (*flags & 1)
			return -EBUSY;
		bit = 256;
		break;
	case 'e':
		return 0; /* merged */
	case 'f':
		*flags ^= 0xff;
		return 1;
	case 'g':
		bit = *flags << 1;
		break;
	case 'h':
		*flags = 0;
		return -ENOSYS;
	default:
		return -ENOENT; /* merged */
	}
	if (on)
		*flags |= bit;
	else
		*flags &= ~bit;
	return 0;
}

int parse_options(const char *text, unsigned int *flags, int *size)
{
	int error = 0; /* known */

	if (!text || !*text)
		return 0;
	if (WARN_ON(strlen(text) > 30)) /* merged */
		return -E2BIG;
	while (*text) { /* known */
		bool on = true;

		if (*text == '!') {
			on = false;
			text++;
		}
		if (*text == 's' && text[1] == '=') {
			text += 2;
			error = read_number(&text, size);
			if (error)
				goto fail;
			if (*size > 4096 || (*size & 3)) {
				error = -EDOM;
				goto fail;
			}
		} else {
			error = set_flag(flags, *text, on);
			if (error < 0)
				goto fail;
			text++;
		}
		if (*text == ',')
			text++;
	}
	return error;
fail:
	*flags |= 1U << 31;
	return error; /* merged */
}
