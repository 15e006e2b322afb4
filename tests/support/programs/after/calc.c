/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program after a patch. */
#include "src/calc.h"
/*
 * A comment,
 * so that all lines differ.
 */
NOINLINE int clamp(int value)
{
	if (value < 0) {
		hit("low");
		return 0;
	}
	if (value == 42) {
		hit("new answer");
		return 1;
	}
	if (value > 200) {
		hit("high");
		return 100;
	}
	return helper(value);
}
static NOINLINE int new_name(int value)
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
static NOINLINE int added(int value)
{
	hit("added");
	return value * 5;
}
int run(int value)
{
	int sum = clamp(value) + moved(value);
	if (value == 9) {
		hit("nine");
		sum++;
	}
	return sum + new_name(value) + added(value);
}
