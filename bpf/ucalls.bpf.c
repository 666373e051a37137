/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Calls of methods by class and method, from the USDT probes of language runtimes. Both names are read where the probe's
 * arguments say (one program has the site of one target), and stand for the row by a keyed hash of 64 bits. For latencies each
 * thread has a stack of the calls it is in, which a return looks through from its top: calls that an exception ended
 * without a return are dropped with it. The stack is a ring, so that it holds the innermost calls, however many are open or
 * have been left without a return for ever.
 */
#include "shared/owned.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/siphash.bpf.h"

#define CHUNK 63        /* bytes of a name that are read at once */
#define CLASS_CHUNKS 4  /* longer classes are cut */
#define METHOD_CHUNKS 2
#define PLACES 8
#define WAYS 4
#define DEPTH 64

struct uc_row {
	__u64 claims;
	__u64 key; /* 0: no names yet */
	__u64 calls;
	__u64 ns;
	__u64 timed; /* calls that ns holds */
	__u64 pad[3];
	__u64 class[32];
	__u64 method[16];
};

/* Where an argument is; src/modules/ucalls.rs writes it. */
struct uc_argument {
	__u64 value; /* a constant, or a displacement */
	__u64 place; /* kind | base register << 8 | index register << 16 | factor << 24 | unused bits << 32 | signed << 40 */
};

enum {
	UC_NOWHERE, /* the probe does not have it */
	UC_CONSTANT,
	UC_REGISTER,
	UC_MEMORY,
};

struct uc_site {
	struct uc_argument class;
	struct uc_argument class_length;
	struct uc_argument method;
	struct uc_argument method_length;
	__u64 returns; /* it is passed where methods return */
	__u64 pad[7];
};

struct uc_frame {
	__u64 key;
	__u64 ns;
};

struct uc_stack {
	__u64 thread; /* 0: free */
	__u64 depth;
	__u64 lost;  /* so many of them, the outermost, have given their frames to calls inside them */
	__u64 born;  /* when the thread began: an earlier one may have ended inside calls, and left its id */
	struct uc_frame frames[DEPTH];
};

struct uc_stat {
	__u64 crowded;   /* calls whose names found no row */
	__u64 unread;    /* calls whose names could not be read */
	__u64 unmatched; /* returns of calls whose start was not seen */
	__u64 deep;      /* calls that lost their frames: not timed */
	__u64 pad[4];
};

ROWS(uc_rows, struct uc_row);
ROWS(uc_sites, struct uc_site);
ROWS(uc_stats, struct uc_stat);
PRIVATE(uc_stacks, struct uc_stack);

const volatile __u32 uc_mask;
const volatile __u32 uc_stack_mask;
const volatile bool uc_timed;
const volatile __u64 uc_filter;

static __always_inline __u64 uc_register(struct pt_regs *ctx, __u32 offset)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)ctx + (offset & 0xff));
	return value;
}

/* The value of an argument; false if its memory cannot be read. */
static __always_inline bool uc_value(struct pt_regs *ctx, const struct uc_argument *argument, __u64 *value)
{
	__u64 place = argument->place, v = argument->value;
	__u32 unused = place >> 32 & 63;

	if ((place & 0xff) == UC_REGISTER)
		v = uc_register(ctx, place >> 8);
	if ((place & 0xff) == UC_MEMORY) {
		__u64 address = v + uc_register(ctx, place >> 8);

		if (place >> 24 & 0xff)
			address += uc_register(ctx, place >> 16) * (place >> 24 & 0xff);
		v = 0;
		if (bpf_probe_read_user(&v, sizeof(v), (void *)address))
			return false;
	}
	v <<= unused;
	*value = place >> 40 & 1 ? (__s64)v >> unused : v >> unused;
	return true;
}

struct uc_name {
	__u64 at;
	__s64 length; /* negative: to the first NUL */
};

/* A name's place; false if it cannot be told. */
static __always_inline bool uc_name(struct pt_regs *ctx, const struct uc_argument *at, const struct uc_argument *length,
				    struct uc_name *name)
{
	name->length = 0;
	if (!(at->place & 0xff))
		return true;
	if (!uc_value(ctx, at, &name->at))
		return false;
	name->length = -1;
	if (!(length->place & 0xff))
		return true;
	return uc_value(ctx, length, (__u64 *)&name->length) && name->length >= 0;
}

static __always_inline bool uc_hash(const struct uc_name *name, const int chunks, struct sip *sip)
{
	__u64 chunk[8];

	for (int i = 0; i < chunks; i++) {
		void *from = (void *)(name->at + i * CHUNK);
		__s64 left = name->length - i * CHUNK, size;

		__builtin_memset(chunk, 0, sizeof(chunk));
		if (name->length < 0) {
			size = bpf_probe_read_user_str(chunk, sizeof(chunk), from);
			if (size <= 0)
				return false;
			size--;
		} else {
			size = left > CHUNK ? CHUNK : left;
			BOUND(size, 63);
			if (bpf_probe_read_user(chunk, size, from))
				return false;
		}
#pragma clang loop unroll(disable)
		for (int j = 0; j < 8; j++)
			sip_add(sip, chunk[j]);
		if (size < CHUNK)
			break;
	}
	/* The end of the class is not the beginning of the method. */
	sip_add(sip, 0xff);
	return true;
}

/* Copies a name, cut to what was hashed; the mask, last before the call, is what the verifier of 5.10 knows the size by. */
static __always_inline void uc_copy(void *to, const struct uc_name *name, const __u32 most)
{
	__u64 size = name->length > most ? most : name->length;

	if (name->length < 0) {
		bpf_probe_read_user_str(to, most + 1, (void *)name->at);
		return;
	}
	if (most > 127)
		BOUND(size, 255);
	else
		BOUND(size, 127);
	bpf_probe_read_user(to, size, (void *)name->at);
}

/* The row of two names. */
static __always_inline struct uc_row *uc_find(__u64 key, const struct uc_name *class, const struct uc_name *method)
{
	__u32 hash = number_hash(key), place;
	struct uc_row *r;

	OWNED_ROW(r, place, &uc_rows, PLACES, number_slot(hash, nth) & uc_mask, r->key == key, claim(&r->claims), {
		uc_copy(r->class, class, CLASS_CHUNKS * CHUNK);
		uc_copy(r->method, method, METHOD_CHUNKS * CHUNK);
		*(volatile __u64 *)&r->key = key;
	});
	if (!r)
		LOSE(uc_stats, crowded);
	return r;
}

/* The stack of this thread; with take a free one, or another's if there is none. */
static __always_inline struct uc_stack *uc_stack(__u64 thread, const bool take)
{
	__u32 set = number_hash(thread) & uc_stack_mask;
	struct task_struct *task = (void *)bpf_get_current_task();
	__u64 born = BPF_CORE_READ(task, start_time);
	struct uc_stack *stack;
	__u32 way = 0;

#pragma clang loop unroll(disable)
	for (int i = 0; i < WAYS; i++) {
		stack = row(&uc_stacks, (set + i) & uc_stack_mask);
		if (!stack)
			return NULL;
		if (stack->thread == thread && stack->born == born)
			return stack;
		if (!stack->thread)
			way = i;
	}
	if (!take)
		return NULL;
	stack = row(&uc_stacks, (set + way) & uc_stack_mask);
	if (!stack)
		return NULL;
	stack->depth = 0;
	stack->lost = 0;
	stack->born = born;
	*(volatile __u64 *)&stack->thread = thread;
	return stack;
}

static __always_inline void uc_enter(__u64 thread, __u64 key)
{
	struct uc_stack *stack = uc_stack(thread, true);
	__u64 at;

	if (!stack)
		return;
	at = stack->depth++;
	if (at - stack->lost >= DEPTH) {
		stack->lost++;
		LOSE(uc_stats, deep);
	}
	BOUND(at, 63);
	stack->frames[at].key = key;
	stack->frames[at].ns = bpf_ktime_get_ns();
}

/* Ends a call: its time, negative if it is not known. */
static __always_inline __s64 uc_leave(__u64 thread, __u64 key)
{
	struct uc_stack *stack = uc_stack(thread, false);
	__u64 now = bpf_ktime_get_ns(), depth, held;

	if (!stack) {
		LOSE(uc_stats, unmatched);
		return -1;
	}
	depth = stack->depth;
	held = depth - stack->lost;
	for (__u64 i = 0; i < DEPTH; i++) {
		__u64 at = depth - 1 - i;

		if (i >= held)
			break;
		BOUND(at, 63);
		if (stack->frames[at].key != key)
			continue;
		now -= stack->frames[at].ns;
		stack->depth = depth - 1 - i;
		if (!stack->depth)
			stack->thread = 0;
		return now;
	}
	if (!stack->lost) {
		LOSE(uc_stats, unmatched);
		return -1;
	}
	/* It is that of a call without a frame; all inside it have ended. */
	stack->depth = --stack->lost;
	if (!stack->depth)
		stack->thread = 0;
	return -1;
}

ON_EACH_CODE(target, ctx)
{
	struct uc_site *site = row(&uc_sites, target);
	struct uc_name class = {}, method = {};
	struct uc_row *r;
	struct sip sip;
	__u64 key;
	__s64 ns = -1;

	if (!site || !filter_wants_current(uc_filter))
		return;
	sip_begin(&sip);
	if (!uc_name(ctx, &site->class, &site->class_length, &class) ||
	    !uc_name(ctx, &site->method, &site->method_length, &method) ||
	    !uc_hash(&class, CLASS_CHUNKS, &sip) || !uc_hash(&method, METHOD_CHUNKS, &sip)) {
		LOSE(uc_stats, unread);
		return;
	}
	key = sip_end(&sip) | 1;
	if (uc_timed && !site->returns) {
		uc_enter(bpf_get_current_pid_tgid(), key);
		return;
	}
	if (uc_timed)
		ns = uc_leave(bpf_get_current_pid_tgid(), key);
	r = uc_find(key, &class, &method);
	if (!r)
		return;
	ADD(r->calls, 1);
	if (ns >= 0) {
		ADD(r->ns, ns);
		ADD(r->timed, 1);
	}
}
