/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program before a patch. */
#include "src/calc.h"
NOINLINE int clamp(int value)
{
	if (value < 0) {
		hit("low");
		return 0;
	}
	if (value > 100) {
		hit("high");
		return 100;
	}
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
static NOINLINE int old_name(int value)
{
	int sum = 0;
	while (value > 0) {
		hit("renamed loop");
		value -= 3;
		sum += clamp(value);
	}
	if (sum > 50) {
		hit("renamed large");
		return 50;
	}
	return sum;
}
static NOINLINE int removed(int value)
{
	hit("removed");
	return value * 3;
}
int run(int value)
{
	int sum = clamp(value) + moved(value);
	if (value == 9) {
		hit("nine");
		sum++;
	}
	return sum + old_name(value) + removed(value);
}
