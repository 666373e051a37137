/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Nanoseconds of a call of `emulated` or `stepped`, over 50,000 calls, or of a system call (`system`). The functions differ in how the kernel
 * executes the instruction that a probe at the function's first one displaces (arch/x86/kernel/uprobes.c, arch/arm64/kernel/probes/decode-insn.c).
 */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 50000 };

void emulated(void);
void stepped(void);

#if defined(__x86_64__)
#define EMULATED "push %rbp\n pop %rbp\n ret\n"
#define STEPPED "lea 1(%rdi), %rax\n ret\n"
#elif defined(__aarch64__)
#define EMULATED "nop\n ret\n"
#define STEPPED "add x0, x0, #1\n ret\n"
#endif

#define FUNCTION(name, code) \
	__asm__(".text\n .globl " #name "\n .type " #name ", %function\n" #name ": " code " .size " #name ", . - " #name "\n");
FUNCTION(emulated, EMULATED)
FUNCTION(stepped, STEPPED)

static void system_call(void)
{
	syscall(SYS_getppid);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* others that run meanwhile do not count */
	return now.tv_sec + now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	void (*function)(void) = !strcmp(name, "stepped") ? stepped : !strcmp(name, "system") ? system_call : emulated;
	double begin = seconds();

	for (int i = 0; i < CALLS; i++)
		function();
	printf("%f\n", (seconds() - begin) * 1e9 / CALLS);
	return 0;
}
