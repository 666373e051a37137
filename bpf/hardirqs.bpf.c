/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How long the handlers of interrupts run, by interrupt and handler. A CPU runs one at a time: times are kept by CPU. */
#include "shared/places.bpf.h"
#include "shared/groups.bpf.h"

/* A handler, by one CPU or several. Counters only: the agent adds rows up word by word. */
struct hard_row {
	__u64 used; /* whether a program has counted in it */
	__u64 unhandled;
	struct fine_hist run;
	__u64 pad[5];
};

/* A CPU. Mostly one handler runs again and again: which row it has is remembered. */
struct hard_cpu {
	__u64 since;  /* when its handler began, by bpf_ktime_get_ns; 0: it is in none */
	__u64 unseen; /* ends without a beginning */
	__u64 irq;    /* of the last handler */
	__u64 name;   /* where its name is */
	__u64 number; /* its owner's */
	__u64 index;  /* of its rows */
	__u64 pad[2];
};

ROWS(hard_owners, struct place_owner);
ROWS(hard_rows, struct hard_row);
ROWS(hard_marks, struct mark); /* one for each row of a group */
ROWS(hard_cpus, struct hard_cpu);

const volatile __u32 hard_mask;      /* places of owners, less 1 */
const volatile __u32 hard_cpu_shift; /* 1 << this many CPUs share their rows */
const volatile bool hard_shared;     /* it is more than one */

ON(irq_handler_entry, int irq, struct irqaction *action)
{
	struct hard_cpu *cpu = cpu_row(&hard_cpus);

	if (cpu)
		cpu->since = bpf_ktime_get_ns();
}

/* The index of a handler's rows. Its owner is its interrupt and a hash of its name. */
static __always_inline __u32 hard_index(struct hard_cpu *cpu, __u32 irq, const char *name)
{
	struct place_owner *owner;

	if (cpu->irq == irq && cpu->name == (__u64)name && cpu->index) {
		/* The agent may have taken the place away. */
		owner = row(&hard_owners, cpu->index - 1);
		if (owner && owner->id == cpu->number)
			return cpu->index;
	}
	cpu->irq = irq;
	cpu->name = (__u64)name;
	cpu->number = (__u64)name_hash(name) << 32 | (irq + 1);
	cpu->index = place_index(&hard_owners, hard_mask, cpu->number);
	return cpu->index;
}

ON(irq_handler_exit, int irq, struct irqaction *action, int ret)
{
	const bool plain = !hard_shared; /* interrupts are off: nothing interleaves */
	struct hard_cpu *cpu = cpu_row(&hard_cpus);
	struct hard_row *r;
	__u64 since, ns;

	if (!cpu)
		return;
	since = cpu->since;
	cpu->since = 0;
	if (unlikely(!since)) {
		cpu->unseen++;
		return;
	}
	ns = bpf_ktime_get_ns() - since;
	r = place_row(&hard_rows, &hard_marks, hard_mask, hard_cpu_shift, hard_index(cpu, irq, GET(action, name)));
	if (!r)
		return;
	if (!ret) /* IRQ_NONE */
		GROUP_SUM(r->unhandled, 1);
	GROUP_TIME(r->run, ns);
}
