/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counting only some processes: a set of process ids that the agent keeps up to date while the programs run. It may give
 * each of them a number, the place of its own row in some table.
 */
#pragma once

#include "probe.bpf.h"

#define PROCESS_SET(name)                                                                                             \
	struct {                                                                                                      \
		__uint(type, BPF_MAP_TYPE_HASH);                                                                      \
		__uint(max_entries, 1);                                                                               \
		__type(key, __u32);                                                                                   \
		__type(value, __u32);                                                                                 \
	} name SEC(".maps")

static __always_inline __u32 *set_number(void *set, __u32 process)
{
	return bpf_map_lookup_elem(set, &process);
}

static __always_inline bool in_set(void *set, __u32 process)
{
	return bpf_map_lookup_elem(set, &process);
}
