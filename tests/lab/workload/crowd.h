/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A crowd of idle threads. */
#ifndef KCOVLAB_CROWD_H
#define KCOVLAB_CROWD_H

void crowd(unsigned int n);
void crowd_stop(void);

#endif
