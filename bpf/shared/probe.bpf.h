/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a module's .bpf.c is written with.
 *
 *   ON(hook, arguments...) { ... }          runs at a tracepoint; arguments as in the kernel's TP_PROTO. ON(hook___name, ...) is a
 *                                           program of its own there: for a hook that other modules only fall back to
 *   ON_ENTRY(function, arguments...)        runs when a kernel function is entered
 *   ON_RETURN(function, count, type ret)    runs when it returns; count is its number of arguments
 *   ON_SPAN(function, count, type argument, type ret, enter, leave)
 *                                           both, where each is one statement; on one line
 *   ON_EACH_TRACEPOINT(target)              runs at each tracepoint that the configuration names; target is its number
 *   ON_EACH_ENTRY(target, frame)            runs when one of the kernel functions it names is entered; frame: where its stack frame begins
 *   ON_EACH_RETURN(target, bits, ret, frame)
 *                                           runs when one returns; bits is the width of its return value (0: none)
 *   ON_EACH_CODE(target, ctx)               runs at each place in user code that it names; ctx: the registers there
 *   ON_EACH_CODE_RETURN(target, ctx)        runs when the function that begins there returns
 *   ON_SAMPLE(name)                         runs at a perf event that the agent opens on each CPU
 *   ON_PACKET(way)                          runs at each packet of a socket of v2's cgroups that comes (ingress) or goes (egress)
 *   ON_WALK(kind, meta, object)             runs for each object of an iterator of the kernel while the agent reads it, and once
 *                                           without an object at the end
 *   ON_CALL(name, arguments...)             runs when the agent calls it; yields a number
 *   FEATURE(name, expression)               asks the kernel's BTF something; user space reads the answer by name
 *
 * build.rs collects these from all modules and writes the programs: one per hook, shared by the modules that use it,
 * as tp_btf and raw_tp (tracepoints) or fentry/fexit and kprobe/kretprobe (functions). Each module's part is behind
 * its constant `<module>_on`, so the verifier drops the parts of modules that are off and their maps need not exist.
 *
 * Where modules may be stopped while others run (`stoppable`), a part in a program of several modules is behind a switch, too, that the
 * agent turns while programs run. A module that leaves work to another where that is on says so in its plan (Plan::leave_to): the other's
 * part then runs as long as either does, and what is not for others is behind COUNTS_FOR(module).
 *
 * Handlers that several modules share are in a header without `#pragma once`: each module that includes it has them, and
 * OWN(name) is there what is the module's own, <module>_name.
 */
#pragma once

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* A switch that has a module's part do nothing. Others (src/bpf.rs has all): 0, it does everything; 1, what other modules leave to it. */
#define PART_OFF 2

/* Whether a module's part runs at all, and whether it counts for the module itself. */
#define RUNS(module) (module##_on && !(stoppable && module##_part == PART_OFF))
#define COUNTS_FOR(module) (module##_on && !(stoppable && module##_part))

#define PASTE_(a, b) a##__##b
#define PASTE(a, b) PASTE_(a, b)
#define OWN_(module, name) module##_##name
#define OWN_OF(module, name) OWN_(module, name)
#define OWN(name) OWN_OF(MODULE, name)

#define ON(hook, ...) static __always_inline void PASTE(MODULE, hook)(const bool raw, void *ctx, ##__VA_ARGS__)
#define ON_ENTRY(function, ...) static __always_inline void PASTE(MODULE, function)(const bool raw, void *ctx, ##__VA_ARGS__)
#define ON_RETURN(function, count, ret) static __always_inline void PASTE(MODULE, function##_ret)(const bool raw, void *ctx, ret)
#define ON_SPAN(function, count, argument, ret, enter, leave)                                                         \
	ON_ENTRY(function, argument) { enter; }                                                                       \
	ON_RETURN(function, count, ret) { leave; }
#define ON_EACH_TRACEPOINT(target) static __always_inline void PASTE(MODULE, each_tracepoint)(__u32 target)
#define ON_EACH_ENTRY(target, frame) static __always_inline void PASTE(MODULE, each_entry)(__u32 target, __u64 frame)
#define ON_EACH_RETURN(target, bits, ret, frame)                                                                      \
	static __always_inline void PASTE(MODULE, each_return)(__u32 target, __u32 bits, __u64 ret, __u64 frame)
#define ON_EACH_CODE(target, ctx) static __always_inline void PASTE(MODULE, each_code)(__u32 target, struct pt_regs *ctx)
#define ON_EACH_CODE_RETURN(target, ctx) static __always_inline void PASTE(MODULE, each_code_return)(__u32 target, struct pt_regs *ctx)
#define ON_SAMPLE(name) static __always_inline void PASTE(MODULE, name##_sample)(void *ctx)
#define ON_PACKET(way) static __always_inline void PASTE(MODULE, way##_packet)(struct __sk_buff *skb)
#define ON_WALK(kind, ...) static __always_inline void PASTE(MODULE, kind##_walk)(__VA_ARGS__)
#define ON_CALL(name, ...) static __always_inline int PASTE(MODULE, name##_call)(__VA_ARGS__)
#define FEATURE(name, expression)                                                                                     \
	const volatile bool PASTE(opposite, name); /* for tests: the other side of it on this kernel */               \
	static __always_inline bool PASTE(feature, name)(void) { return (expression) != PASTE(opposite, name); }

/* The stack pointer as it was when the function was called that has just returned: on x86 a return takes its address off the stack. */
#ifdef __TARGET_ARCH_x86
#define RETURN_FRAME(regs) (PT_REGS_SP((struct pt_regs *)(regs)) - sizeof(__u64))
#else
#define RETURN_FRAME(regs) PT_REGS_SP((struct pt_regs *)(regs))
#endif

/*
 * A field of a kernel object inside a handler: a plain load where the pointer is typed (tp_btf, fentry), a probe read
 * where it is a number (raw_tp, kprobe). A probe read is a helper call of about 18 ns, hence the difference.
 */
#define GET(p, field)                                                                                                 \
	({                                                                                                            \
		typeof(p) p_ = (p);                                                                                   \
		typeof(p_->field) v_;                                                                                 \
		if (raw)                                                                                              \
			bpf_core_read(&v_, sizeof(v_), &p_->field);                                                   \
		else                                                                                                  \
			v_ = p_->field;                                                                               \
		v_;                                                                                                   \
	})

/* Whether the current task is to be had typed, so that its fields are plain loads: 5.11 and later. */
enum bpf_func_id___task {
	BPF_FUNC_get_current_task_btf___task = 158,
};

#define HAS_TYPED_TASK bpf_core_enum_value_exists(enum bpf_func_id___task, BPF_FUNC_get_current_task_btf___task)

/*
 * The command name of the current process, not of its thread. Read by helpers, also where the task is to be had typed: the verifier of
 * Linux 6.13 to 6.18 takes a millisecond for each load of a pointer from a typed object, and this runs once for each row.
 */
static __always_inline void process_name(__u64 comm[2])
{
	struct task_struct *task = (void *)bpf_get_current_task();

	BPF_CORE_READ_INTO((char(*)[16])comm, task, group_leader, comm);
}

/* When the current process began; read like its name. */
static __always_inline __u64 process_born(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, group_leader, start_time);
}

/* How many programs the current process and its forebears have executed; it only grows, whichever thread is asked. */
static __always_inline __u64 process_execs(void)
{
	struct task_struct *task;
	__u64 execs = 0;

	if (HAS_TYPED_TASK)
		return bpf_get_current_task_btf()->self_exec_id;
	task = (void *)bpf_get_current_task();
	bpf_core_read(&execs, bpf_core_field_size(task->self_exec_id), &task->self_exec_id);
	return execs;
}

/*
 * The address of a typed object as a number, where HAS_TYPED_TASK: the verifier allows no arithmetic on a typed pointer but the
 * difference of two, and the address of the current task is to be had as a number, too. Half the time of a probe read.
 */
static __always_inline __u64 typed_address(const void *object)
{
	__u64 number;

	asm volatile("%0 = %1; %0 -= %2" : "=&r"(number) : "r"(object), "r"(bpf_get_current_task_btf()));
	return number + bpf_get_current_task();
}

/*
 * The programs of ON_EACH_* are templates: the loader (src/loader/template.rs) makes a copy per target and puts the target's
 * number, and above it the width of the function's return value, in the place of this constant.
 */
#define TARGET                                                                                                        \
	({                                                                                                            \
		__u64 target_;                                                                                        \
		asm volatile("%0 = 0x7461726765742121 ll" : "=r"(target_));                                           \
		target_;                                                                                              \
	})

/* What the function of an fexit program returned (bpf_get_func_ret, 5.17). */
static __always_inline __u64 returned(void *ctx)
{
	__u64 ret = 0;

	bpf_get_func_ret(ctx, &ret);
	return ret;
}

/* Forgets what the verifier knows of v except that it is at most mask: 5.10 and 6.1 lose a mask written in C. */
#define BOUND(v, mask) asm volatile("%0 &= " #mask : "+r"(v))

/* An array that the agent maps: rows are multiples of 64 bytes so that CPUs do not share a line. */
#define ROWS(name, row)                                                                                               \
	struct {                                                                                                      \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                     \
		__uint(map_flags, BPF_F_MMAPABLE);                                                                    \
		__uint(max_entries, 1);                                                                               \
		__type(key, __u32);                                                                                   \
		__type(value, row);                                                                                   \
	} name SEC(".maps")

/* An array only the programs use. */
#define PRIVATE(name, slot)                                                                                             \
	struct {                                                                                                      \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                                     \
		__uint(max_entries, 1);                                                                               \
		__type(key, __u32);                                                                                   \
		__type(value, slot);                                                                                  \
	} name SEC(".maps")

/* Records for the agent. */
#define RING(name)                                                                                                    \
	struct {                                                                                                      \
		__uint(type, BPF_MAP_TYPE_RINGBUF);                                                                   \
		__uint(max_entries, 4096);                                                                            \
	} name SEC(".maps")

/* Gives a record to the agent, and wakes it where that many bytes are waiting. */
static __always_inline void ring_submit(void *ring, void *record, __u64 wake_at)
{
	bool wake = bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) >= wake_at;

	bpf_ringbuf_submit(record, wake ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
}

/* Only a typed reference makes clang keep a struct in BTF, which is where the Rust side gets it from. */
#define EXPORT(type) const type *PASTE(export, __COUNTER__) __attribute__((unused))

static __always_inline void *row(void *map, __u32 index)
{
	return bpf_map_lookup_elem(map, &index);
}

static __always_inline void *cpu_row(void *map)
{
	return row(map, bpf_get_smp_processor_id());
}

/* Counts a loss in this CPU's row of an array. */
#define LOSE(rows, what)                                                                                              \
	do {                                                                                                          \
		typeof(*(rows).value) *lost_ = cpu_row(&(rows));                                                      \
		if (lost_)                                                                                            \
			ADD(lost_->what, 1);                                                                          \
	} while (0)

/* A locked add: for cells that two programs or two CPUs may write. */
#define ADD(cell, n) __sync_fetch_and_add(&(cell), n)

/*
 * An add to a cell of this CPU's row that only this program writes. Since 6.1 the kernel keeps a tracing program from
 * nesting on a CPU (bpf_prog_inc_misses_counter came with it), which makes the plain form exact; the nearest thing BTF
 * can be asked for is a helper of 6.2. Elsewhere the add is locked, 3 ns more.
 */
enum bpf_func_id___guard {
	BPF_FUNC_cgrp_storage_get___guard = 210,
};

#define SUM(cell, n)                                                                                                  \
	do {                                                                                                          \
		if (bpf_core_enum_value_exists(enum bpf_func_id___guard, BPF_FUNC_cgrp_storage_get___guard))          \
			(cell) += (n);                                                                                \
		else                                                                                                  \
			ADD(cell, n);                                                                                 \
	} while (0)
#define COUNT(cell) SUM(cell, 1)
