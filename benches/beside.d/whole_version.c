/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * For LD_PRELOAD: uname() with the version that the kernel is of as its release. Debian's release ("5.10.0-46") leaves out the last
 * number; the text of its version has it ("#1 SMP Debian 5.10.259-1 (2026-07-31)").
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int uname(struct utsname *name)
{
	int status = syscall(SYS_uname, name);
	const char *version = status ? NULL : strstr(name->version, "Debian ");

	if (version)
		sscanf(version, "Debian %64[0-9.]", name->release);
	return status;
}
