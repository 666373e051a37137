/* SPDX-License-Identifier: GPL-2.0-or-later */
/* pingpong PAIRS SECONDS: pairs of processes that wake each other through pipes, more of them than CPUs, so that waiting
 * tasks are also moved between CPUs. */
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static void player(int in, int out, int serves)
{
	char ball = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (serves && write(out, &ball, 1) != 1)
		_exit(1);
	while (read(in, &ball, 1) == 1 && write(out, &ball, 1) == 1)
		;
	_exit(0);
}

int main(int argc, char **argv)
{
	int pairs = argc > 1 ? atoi(argv[1]) : 4, seconds = argc > 2 ? atoi(argv[2]) : 1;

	for (int i = 0; i < pairs; i++) {
		int there[2], back[2];

		if (pipe(there) || pipe(back))
			return 1;
		if (!fork())
			player(there[0], back[1], 0);
		if (!fork())
			player(back[0], there[1], 1);
	}
	sleep(seconds);
	return 0;
}
