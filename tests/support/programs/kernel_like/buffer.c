// SPDX-License-Identifier: LGPL-2.1-or-later
/* A ring buffer: arithmetic, conditions of several parts, tail calls. */
#include "kernel.h"

#define SIZE 16

static char ring[SIZE];
static unsigned int head, tail;

static inline unsigned int ring_count(void)
{
	return head - tail;
}

static noinline int push(char byte)
{
	if (ring_count() == SIZE)
		return -ENOSPC;
	ring[head++ % SIZE] = byte;
	return 0;
}

static noinline int pop(void)
{
	if (head == tail)
		return -EAGAIN;
	return ring[tail++ % SIZE];
}

static noinline int drain(int most)
{
	int sum = 0;

	while (most-- > 0) {
		int byte = pop();

		if (byte == -EAGAIN)
			break;
		if ((byte > 'm' && byte < 'q') || byte == '?')
			sum += 1000;
		else if (byte < ' ' && (sum & 1))
			sum -= 7;
		else
			sum += byte;
	}
	return sum;
}

static noinline int refill(int count)
{
	if (count > SIZE)
		return push('?');
	return drain(count);
}

int ring_run(const char *data, int size)
{
	int i, sum = 0;

	head = tail = 0;
	for (i = 0; i < size; i++) {
		int error = push(data[i]);

		if (error == -ENOSPC) {
			sum += drain(SIZE / 2);
			error = push(data[i]);
		}
		BUG_ON(error);
		if (data[i] == 'x' || (i == 20 && sum < 3))
			sum ^= refill(i);
	}
	return sum + drain(SIZE);
}
