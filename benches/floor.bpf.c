/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Empty programs on the hooks that are compared: what a program costs before it does anything. */

#define FLOOR(hook)                                                                                                   \
	__attribute__((section("tp_btf/" #hook), used)) int floor_##hook(void *ctx)                                   \
	{                                                                                                             \
		return 0;                                                                                             \
	}

FLOOR(block_rq_insert)
FLOOR(block_rq_issue)
FLOOR(block_rq_complete)
FLOOR(sched_wakeup)
FLOOR(sched_wakeup_new)
FLOOR(sched_switch)

char LICENSE[] __attribute__((section("license"), used)) = "GPL";
