/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Kernel mutexes by caller: the time from entering a lock function to owning the lock, and from there to the unlock. What a
 * thread waits for and holds is kept by thread and lock, so that neither the order of unlocks nor the way a lock was taken
 * matters. The times are added up by the innermost callers of the lock function, as addresses; the agent names them.
 */
#include "shared/owned.bpf.h"
#include "shared/filter.bpf.h"
#include "shared/spans.bpf.h"

#define KL_FRAMES 16 /* the most callers that tell acquisitions apart */
#define KL_LEAD 8    /* the most frames before the caller's: program, trampoline, lock function, ... */
#define KL_JUMPED 2  /* those before it where the lock function has none */
#define KL_HELD 8    /* locks that a thread can hold at once */
#define KL_WAYS 8
#define KL_NO_ROW 0xffffffff

struct kl_row {
	__u64 key; /* of the callers; 0: free */
	__u64 claims;
	__u64 callers[KL_FRAMES]; /* the innermost first; all 0: they are not known */
	struct span_times spin;
	struct span_times hold;
	__u64 pad[2];
};

struct kl_stat {
	__u64 homeless; /* acquisitions whose callers found no place */
	__u64 dropped;  /* acquisitions whose unlock will not be recognised */
	__u64 unseen;   /* calls of lock functions whose return was not seen */
	__u64 pad[5];
};

struct kl_held {
	__u64 lock; /* 0: free */
	__u64 ns;
	__u64 row;
};

/* Only its thread writes to it, unless two threads share a place. */
struct kl_thread {
	__u64 id;    /* process << 32 | thread */
	__u64 lock;  /* the thread is in a function that locks it; 0: in none */
	__u64 ns;    /* since then */
	__u32 row;   /* its callers */
	__u32 outer; /* the function is one that may call another for the same lock */
	struct kl_held held[KL_HELD];
	__u64 stack[KL_LEAD + KL_FRAMES];
};

/* Where a function's code is. */
struct kl_code {
	__u64 start;
	__u64 size;
};

ROWS(kl_rows, struct kl_row);
ROWS(kl_stats, struct kl_stat);
PRIVATE(kl_threads, struct kl_thread);

const volatile struct kl_code kl_lock;
const volatile struct kl_code kl_interruptible;
const volatile struct kl_code kl_killable;
const volatile struct kl_code kl_io;
const volatile struct kl_code kl_trylock;
const volatile __u32 kl_depth;
const volatile __u32 kl_row_mask;
const volatile __u32 kl_thread_mask;
const volatile __u64 kl_filter;

static __always_inline struct kl_thread *kl_current(__u64 id)
{
	__u32 thread = id;

	return row(&kl_threads, (thread ^ thread >> 12) & kl_thread_mask);
}

/*
 * The row of the callers of a lock function. How many frames lie before them depends on the kernel and the way to attach, so
 * the lock function's is looked for. After 6.18 a function may jump to its trampoline instead of calling it: then it has none.
 */
static __always_inline __u32 kl_callers(const bool raw, void *ctx, struct kl_thread *t, const volatile struct kl_code *code)
{
	__u64 start = code->start, size = code->size, key = 0x9e3779b97f4a7c15, at = raw ? KL_LEAD : KL_JUMPED;
	struct kl_row *r;
	__u32 place;

	bpf_get_stack(ctx, t->stack, (KL_LEAD + kl_depth) * sizeof(__u64), 0);
#pragma unroll
	for (int i = KL_LEAD - 2; i >= 0; i--)
		if (t->stack[i] - start < size)
			at = i + 1;
	if (at == KL_LEAD)
		t->stack[KL_LEAD] = 0; /* callers end with 0 */
	BOUND(at, 15);
	if (at > KL_LEAD)
		return KL_NO_ROW;
#pragma unroll
	for (int i = 0; i < KL_FRAMES; i++) {
		if (i >= kl_depth || !t->stack[at + i])
			break;
		key = (key ^ t->stack[at + i]) * 0xff51afd7ed558ccd;
		key ^= key >> 32;
	}
	key |= 1;
	OWNED_LOOK(r, place, &kl_rows, KL_WAYS, ((key >> 40) + nth) & kl_row_mask, r->key == key);
	if (r)
		return place;
	OWNED_LOOK(r, place, &kl_rows, KL_WAYS, ((key >> 40) + nth) & kl_row_mask, claim(&r->claims));
	if (!r) {
		LOSE(kl_stats, homeless);
		return KL_NO_ROW;
	}
#pragma unroll
	for (int i = 0; i < KL_FRAMES; i++) {
		if (i >= kl_depth || !t->stack[at + i])
			break;
		r->callers[i] = t->stack[at + i];
	}
	*(volatile __u64 *)&r->key = key;
	return place;
}

static __always_inline void kl_enter(const bool raw, void *ctx, const volatile struct kl_code *code, void *lock, bool outer)
{
	__u64 id = bpf_get_current_pid_tgid();
	struct kl_thread *t;

	if (!filter_wants(kl_filter, id >> 32))
		return;
	t = kl_current(id);
	if (!t)
		return;
	if (t->id != id) {
#pragma unroll
		for (int i = 0; i < KL_HELD; i++) {
			if (t->held[i].lock)
				LOSE(kl_stats, dropped);
			t->held[i].lock = 0;
		}
		t->lock = 0;
		t->id = id;
	}
	if (t->lock) {
		if (!outer && t->outer && t->lock == (__u64)lock)
			return;
		LOSE(kl_stats, unseen);
	}
	t->row = kl_callers(raw, ctx, t, code);
	t->outer = outer;
	t->lock = (__u64)lock;
	t->ns = bpf_ktime_get_ns();
}

static __always_inline void kl_leave(bool owns)
{
	__u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid(), lock, oldest = now, free = KL_HELD, same = KL_HELD;
	struct kl_thread *t = kl_current(id);
	struct kl_row *r;

	if (!t || t->id != id || !t->lock)
		return;
	lock = t->lock;
	t->lock = 0;
	if (!owns)
		return;
	r = row(&kl_rows, t->row);
	if (r)
		span_add(&r->spin, now - t->ns);
	/* Its place: that of this lock (its unlock was not seen), else a free one, else the oldest. */
#pragma unroll
	for (int i = 0; i < KL_HELD; i++) {
		__u64 since = t->held[i].lock ? t->held[i].ns : 0;

		if (t->held[i].lock == lock)
			same = i;
		if (since < oldest) {
			oldest = since;
			free = i;
		}
	}
	if (same < KL_HELD)
		free = same;
	BOUND(free, 15);
	if (free >= KL_HELD)
		return;
	if (t->held[free].lock)
		LOSE(kl_stats, dropped);
	t->held[free].lock = lock;
	t->held[free].ns = now;
	t->held[free].row = t->row;
}

ON_SPAN(mutex_lock, 1, void *lock, int ret, kl_enter(raw, ctx, &kl_lock, lock, false), kl_leave(true))
ON_SPAN(mutex_lock_interruptible, 1, void *lock, int ret, kl_enter(raw, ctx, &kl_interruptible, lock, false), kl_leave(!ret))
ON_SPAN(mutex_lock_killable, 1, void *lock, int ret, kl_enter(raw, ctx, &kl_killable, lock, false), kl_leave(!ret))
ON_SPAN(mutex_lock_io, 1, void *lock, int ret, kl_enter(raw, ctx, &kl_io, lock, true), kl_leave(true))
ON_SPAN(mutex_trylock, 1, void *lock, int ret, kl_enter(raw, ctx, &kl_trylock, lock, false), kl_leave(ret))

/* With lock debugging (CONFIG_DEBUG_LOCK_ALLOC) the functions are these. */
ON_SPAN(mutex_lock_nested, 2, void *lock, int ret, kl_enter(raw, ctx, &kl_lock, lock, false), kl_leave(true))
ON_SPAN(mutex_lock_interruptible_nested, 2, void *lock, int ret, kl_enter(raw, ctx, &kl_interruptible, lock, false), kl_leave(!ret))
ON_SPAN(mutex_lock_killable_nested, 2, void *lock, int ret, kl_enter(raw, ctx, &kl_killable, lock, false), kl_leave(!ret))
ON_SPAN(mutex_lock_io_nested, 2, void *lock, int ret, kl_enter(raw, ctx, &kl_io, lock, true), kl_leave(true))
/* From 6.16 these, too. */
ON_SPAN(_mutex_lock_killable, 3, void *lock, int ret, kl_enter(raw, ctx, &kl_killable, lock, false), kl_leave(!ret))
ON_SPAN(_mutex_trylock_nest_lock, 2, void *lock, int ret, kl_enter(raw, ctx, &kl_trylock, lock, false), kl_leave(ret))

ON_ENTRY(mutex_unlock, void *lock)
{
	__u64 now = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
	struct kl_thread *t = kl_current(id);

	if (!t || t->id != id)
		return;
	if (t->lock == (__u64)lock) {
		t->lock = 0;
		LOSE(kl_stats, unseen);
		return;
	}
#pragma unroll
	for (int i = 0; i < KL_HELD; i++) {
		struct kl_held *held = &t->held[i];
		struct kl_row *r;

		if (held->lock != (__u64)lock)
			continue;
		held->lock = 0;
		r = row(&kl_rows, held->row);
		if (r)
			span_add(&r->hold, now - held->ns);
		return;
	}
}
