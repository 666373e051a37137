/* SPDX-License-Identifier: GPL-2.0-or-later */
/* pingpong PAIRS SECONDS: pairs of processes that wake each other through pipes, more of them than CPUs, so that waiting
 * tasks are also moved between CPUs. Without pairs: a process to a CPU that sleeps for 50 us again and again, so that its CPU is idle when
 * its timer wakes it. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
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

static void sleeper(int cpu)
{
	struct timespec pause = { .tv_nsec = 50000 };
	cpu_set_t one;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_TIMERSLACK, 1);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		_exit(1);
	for (;;)
		nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
	int pairs = argc > 1 ? atoi(argv[1]) : 4;
	double seconds = argc > 2 ? atof(argv[2]) : 1;
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		return 1;
	for (int cpu = 0; !pairs && cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus) && !fork())
			sleeper(cpu);
	for (int i = 0; i < pairs; i++) {
		int there[2], back[2];

		if (pipe(there) || pipe(back))
			return 1;
		if (!fork())
			player(there[0], back[1], 0);
		if (!fork())
			player(back[0], there[1], 1);
	}
	usleep(seconds * 1e6);
	return 0;
}
