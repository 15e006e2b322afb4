/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program after a patch. */
#include "src/calc.h"
int other(int value)
{
	return helper(value);
}
NOINLINE int moved(int value)
{
	int index, sum = 0;
	for (index = 0; index < value; index++) {
		hit("moved loop");
		sum += clamp(index);
	}
	if (value == 7) {
		hit("moved seven");
		sum++;
	}
	return sum;
}
