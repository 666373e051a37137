// Walks through 64 MB on each of the given CPUs, in the gaps that other tasks leave (SCHED_IDLE): what is not in use now falls out of the caches.
// walker CPU...: prints a line when all walk; ends when its input ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 64 << 20, LINE = 64 };

static void *walk(void *argument)
{
	cpu_set_t cpus;
	struct sched_param idle = {0};

	CPU_ZERO(&cpus);
	CPU_SET(atoi(argument), &cpus);
	if (pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus) || sched_setscheduler(0, SCHED_IDLE, &idle)) {
		perror("walker");
		exit(1);
	}
	volatile char *memory = malloc(SIZE);
	if (!memory)
		exit(1);
	for (;;)
		for (size_t at = 0; at < SIZE; at += LINE)
			memory[at]++;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, walk, argv[i]))
			return 1;
	}
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
