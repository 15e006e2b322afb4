/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writes the program's trace. The callback itself is not instrumented. */
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
static uint64_t area[1 << 16];
int run(int value);
void __sanitizer_cov_trace_pc(void)
{
	if (area[0] < (1 << 16) - 1)
		area[++area[0]] = (uint64_t)__builtin_return_address(0);
}
void hit(const char *tag)
{
	puts(tag);
}
int main(int argc, char **argv)
{
	FILE *file = fopen(argv[1], "w");
	int index;
	for (index = 2; index < argc; index++)
		run(atoi(argv[index]));
	fwrite(area, 8, area[0] + 1, file);
	return fclose(file);
}
