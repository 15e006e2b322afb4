/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What both builds of the program share. */
#ifdef __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif
void hit(const char *tag);
int clamp(int value);
int moved(int value);
static inline __attribute__((always_inline)) int helper(int value)
{
	if (value & 1) {
		hit("helper odd");
		return 1;
	}
	return value;
}
