// SPDX-License-Identifier: LGPL-2.1-or-later
/* Makes the calls that generations/getpriority.patch changes, and calls a module, which is at another address in each boot. */
#include <fcntl.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

int main(void)
{
	struct utsname name;
	int run;

	getpriority(PRIO_PROCESS, 0);
	/* As with `setarch --uname-2.6`: override_release() then does more than return. */
	personality(PER_LINUX | UNAME26);
	if (uname(&name))
		return 1;
	run = open("/sys/kernel/debug/kcovlab_keep/run", O_WRONLY);
	return run < 0 || write(run, "3", 1) != 1;
}
