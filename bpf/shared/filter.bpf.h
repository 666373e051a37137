/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Counting only some processes. Each module that does has a filter, a bit of a word; `filter_members` says which filters a
 * process is in. bpf/filter.bpf.c and the agent keep it up to date while the programs run.
 */
#pragma once

#include "probe.bpf.h"

struct filter_member {
	__u64 filters; /* all that the process is in */
	__u64 lines;   /* of these, those by its command line, which its children have too */
	__u64 ids;     /* of these, those by its id, which stays over an exec */
	__u64 born;    /* start time of the process; 0: not known */
	__u32 slot;    /* 1 + the number of its own rows, for modules with details; 0: none */
	__u32 asked;   /* the agent is about to look at its command line */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct filter_member);
} filter_members SEC(".maps");

/* The entry of a process that is in a filter, else NULL. */
static __always_inline struct filter_member *filter_member(__u64 filter, __u32 process)
{
	struct filter_member *member = bpf_map_lookup_elem(&filter_members, &process);

	return member && member->filters & filter ? member : NULL;
}

/* Whether a process counts; filter 0 means all. */
static __always_inline bool filter_wants(__u64 filter, __u32 process)
{
	return !filter || filter_member(filter, process);
}

/* Whether the current process counts. Its id is asked for behind the filter: the verifier drops dead branches, but no calls. */
static __always_inline bool filter_wants_current(__u64 filter)
{
	return !filter || filter_member(filter, bpf_get_current_pid_tgid() >> 32);
}
