/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What most examples need: adding to a row of a map, and the buckets of a histogram. */

/* Adds to the row of a key, which is made where there is none. A full map that is no LRU loses it. */
static __always_inline void add(void *map, const void *key, __u64 more)
{
	__u64 zero = 0, *value = bpf_map_lookup_elem(map, key);

	if (!value) {
		bpf_map_update_elem(map, key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(map, key);
	}
	if (value)
		__sync_fetch_and_add(value, more);
}

/* The bucket of a value for `exp2`: ceil(log2(value)), 0 for 0 and 1, and at most `last`. */
static __always_inline __u32 exp2_bucket(__u64 value, __u32 last)
{
	__u32 bucket = 0;

#pragma unroll
	for (__u32 i = 0; i < last; i++)
		bucket += value > 1ULL << i;
	return bucket;
}
