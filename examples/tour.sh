#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Five commands on the bundled demo, each with what there is to see; on a terminal, the shell comes next.
set -eu
: "${KCOVDBG:=kcovdbg}"

# Pairs of lines: what there is to see, and the command. All run in one process.
set --
while IFS= read -r see && IFS= read -r line; do
	set -- "$@" -e "! printf '\\n%s\\nkcovdbg> %s\\n' '$see' '$line'" -e "$line"
done <<'EOF'
Two tasks with KCOV. A softirq section runs on top of kc-traffic right now.
tasks kc-usb kc-traffic --columns pid,comm,mode,count,role
What the softirq interrupted is saved in the task: kc-traffic gets it back.
saved
Meanwhile the records go to a remote area: the end of a USB transfer.
buffer 82
They are for kc-usb, which owns the handles of that USB bus.
objects kc-usb --columns kcov,refs,mode,count,pid,comm
One thing here is broken: check names it, and the kernel bug that does that.
check K10
EOF
# check found something, so the status is 1.
$KCOVDBG --demo -q "$@" || [ $? = 1 ]

if [ -t 0 ] && [ -t 1 ]; then
	printf '\nOpen the shell on this guest? C-d leaves it. [Y/n] '
	read -r answer || answer=n
	case $answer in
	[Nn]*) ;;
	*)
		# In a process group of its own, C-c is not for make as well, which would end with an error. Nothing continues it after C-z.
		trap '' TSTP
		set -m
		$KCOVDBG --demo
		;;
	esac
else
	printf '\nNext: %s --demo opens the shell on this guest; help lists the commands.\n' "$KCOVDBG"
fi
