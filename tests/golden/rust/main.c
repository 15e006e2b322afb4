// SPDX-License-Identifier: LGPL-2.1-or-later
#include <stdint.h>

uint64_t rust_main(uint64_t value);

static inline uint64_t twice(uint64_t value)
{
	return value > 3 ? value * 2 : value;
}

int main(int argc, char **argv)
{
	return rust_main(twice(argc)) & 1;
}
