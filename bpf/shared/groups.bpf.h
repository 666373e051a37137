/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Counters that one CPU has for itself where memory allows, and several CPUs share elsewhere. */
#pragma once

#include "fine.bpf.h"

/* Whether plain adds are exact; asked once, so that the verifier leaves one kind of adds and no question (see SUM). */
static __always_inline bool group_plain(bool shared)
{
	return !shared && bpf_core_enum_value_exists(enum bpf_func_id___guard, BPF_FUNC_cgrp_storage_get___guard);
}

/* Adds to a cell; `plain` is what group_plain said. */
#define GROUP_SUM(cell, n)                                                                                            \
	do {                                                                                                          \
		if (plain)                                                                                            \
			(cell) += (n);                                                                                \
		else                                                                                                  \
			ADD(cell, n);                                                                                 \
	} while (0)

/* Counts a time: the bucket first, so that whoever reads the sum first misses none. */
#define GROUP_TIME(hist, ns)                                                                                          \
	do {                                                                                                          \
		__u64 bucket_ = fine_bucket(ns);                                                                      \
                                                                                                                      \
		GROUP_SUM((hist).buckets[bucket_], 1);                                                                \
		GROUP_SUM((hist).sum, ns);                                                                            \
	} while (0)
