// SPDX-License-Identifier: LGPL-2.1-or-later
/* Runs the code on its arguments and prints what was recorded; it has no points itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int parse_options(const char *text, unsigned int *flags, int *size);
int table_run(const char *commands);
int ring_run(const char *data, int size);

static unsigned long records[1 << 16];
static int count;

__attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_pc(void)
{
	if (count < 1 << 16)
		records[count++] = (unsigned long)__builtin_return_address(0);
}

void warn(int line)
{
	fprintf(stderr, "warning at %d\n", line);
}

int main(int argc, char **argv)
{
	unsigned int flags = 0;
	int size = 0, i;

	if (argc != 4)
		return 2;
	i = parse_options(argv[1], &flags, &size);
	i ^= table_run(argv[2]);
	i ^= ring_run(argv[3], strlen(argv[3]));
	fprintf(stderr, "%d\n", i);
	for (i = 0; i < count; i++)
		printf("%#lx\n", records[i]);
	return 0;
}
