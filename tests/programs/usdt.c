// == probe
/* Macro for probes with a semaphore; `%0` in the arguments stands for the operand. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
unsigned short users __attribute__((section(".probes")));
#define PROBE(name, arguments, operand)                                                               \
	asm volatile("990: nop\n"                                                             \
		     ".pushsection .note.stapsdt,\"\",\"note\"\n"                                 \
		     ".balign 4\n"                                                                \
		     ".4byte 992f-991f, 994f-993f, 3\n"                                           \
		     "991: .asciz \"stapsdt\"\n"                                                  \
		     "992: .balign 4\n"                                                           \
		     "993: .8byte 990b, 0, users\n"                                               \
		     ".asciz \"test\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n"             \
		     "994: .balign 4\n"                                                           \
		     ".popsection\n" : : "r"(operand))

// == site
/* A probe at two sites, which it passes 70 and 7 times for each line that it reads; it answers with the semaphore. */
int main(void)
{
	char line[16];

	while (fgets(line, sizeof(line), stdin)) {
		for (int i = 0; i < 70; i++)
			PROBE("site", "", 0);
		for (int i = 0; i < 7; i++)
			PROBE("site", "", 0);
		printf("%d\n", users);
		fflush(stdout);
	}
}

// == calls
static void enter(const char *name) { PROBE("proc__entry", "8@%0", name); }
static void leave(const char *name) { PROBE("proc__return", "8@%0", name); }

// == ending
/*
 * Threads that end inside a call, then a thousand calls; and a thread that ends inside a call, whose identifier the next thread gets 0.3
 * seconds later: that one returns from a call that nobody saw it enter, and then makes its own. Prints `nobody` if there was no such thread.
 */
static pid_t ended;
static void *ends(void *name)
{
	ended = gettid();
	enter(name);
	return NULL;
}
static void *follows(void *name)
{
	if (gettid() != ended)
		return NULL;
	leave(name);
	enter(name);
	leave(name);
	return name;
}
static void *thread(void *(*work)(void *), char *name)
{
	pthread_t thread;
	void *result;

	pthread_create(&thread, NULL, work, name);
	pthread_join(thread, &result);
	return result;
}
int main(void)
{
	char line[16];
	void *followed = NULL;

	setlinebuf(stdout);
	puts("ready"); /* what was never read is not in memory yet, neither are the names beside it */
	fgets(line, sizeof(line), stdin);
	for (int i = 0; i < 20000; i++)
		thread(ends, "lost");
	for (int i = 0; i < 1000; i++) {
		enter("kept");
		leave("kept");
	}
	puts("done");
	fgets(line, sizeof(line), stdin);
	thread(ends, "again");
	usleep(300000);
	for (int i = 0; i < 1000 && !followed; i++) {
		FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");

		if (!last)
			break;
		fprintf(last, "%d", ended - 1);
		fclose(last);
		followed = thread(follows, "again");
	}
	puts(followed ? "done" : "nobody");
	fgets(line, sizeof(line), stdin);
}

// == leaving
/* One thread: calls that are left without a return, as by exceptions; then calls inside calls, more than there is room for. */
int main(void)
{
	char line[16];

	setlinebuf(stdout);
	puts("ready");
	fgets(line, sizeof(line), stdin);
	enter("outer");
	for (int i = 0; i < 1000; i++) {
		enter("left");
		enter("short");
		leave("short");
	}
	leave("outer");
	puts("done");
	fgets(line, sizeof(line), stdin);
	for (int i = 0; i < 100; i++)
		enter("deep");
	usleep(10000);
	for (int i = 0; i < 100; i++)
		leave("deep");
	enter("after");
	leave("after");
	puts("done");
	fgets(line, sizeof(line), stdin);
}
