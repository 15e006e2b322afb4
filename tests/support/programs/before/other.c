/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The program before a patch. */
#include "src/calc.h"
int other(int value)
{
	return helper(value);
}
