#!/bin/sh
# SPDX-License-Identifier: LGPL-2.1-or-later
# Runs kcovdbg on the bundled demo: a guest that was stopped in a softirq section, which interrupted a task.
set -eu
: "${KCOVDBG:=kcovdbg}"

ask() {
	printf '\nkcovdbg> %s\n' "$1"
	$KCOVDBG --demo -e "$1"
}

ask 'info'
ask 'tasks'
ask 'saved'
ask 'remote'
ask 'areas'
ask 'objects | head -12'
ask 'buffer 82'
ask 'top 25 -n 8'
printf '\nNext: .venv/bin/kcovdbg --demo opens the shell; help lists the commands.\n'
