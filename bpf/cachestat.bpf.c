/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pages that come into the page cache, are accessed in it, and are dirtied. A large folio counts as the pages it has, so that
 * the counts mean the same whatever a file system does; before folios (5.16) every page came by itself.
 */
#include "shared/probe.bpf.h"

struct cache_row {
	__u64 added;
	__u64 accessed;
	__u64 dirtied_pages;
	__u64 dirtied_buffers;
	__u64 pad[4];
};

ROWS(cache_rows, struct cache_row);

static __always_inline __u64 cache_pages(const bool raw, struct folio *folio)
{
	__u64 flags;
	__u32 order;

	if (bpf_core_field_exists(((struct folio___memdesc *)0)->flags.f))
		flags = GET((struct folio___memdesc *)folio, flags.f);
	else if (bpf_core_field_exists(folio->flags))
		flags = GET(folio, flags);
	else
		return 1;
	if (!(flags >> (bpf_core_enum_value(enum pageflags, PG_head) & 63) & 1))
		return 1;
	if (bpf_core_field_exists(((struct folio___order *)0)->_folio_order))
		order = GET((struct folio___order *)folio, _folio_order);
	else if (bpf_core_field_exists(folio->_flags_1))
		order = GET(folio, _flags_1);
	else
		return 1;
	return 1ULL << (order & 31);
}

static __always_inline void cache_access(const bool raw, struct folio *folio)
{
	struct cache_row *r = cpu_row(&cache_rows);

	if (r)
		ADD(r->accessed, cache_pages(raw, folio));
}

static __always_inline void cache_dirty(const bool raw, struct folio *folio)
{
	struct cache_row *r = cpu_row(&cache_rows);

	if (r)
		SUM(r->dirtied_pages, cache_pages(raw, folio));
}

ON(mm_filemap_add_to_page_cache, struct folio *folio)
{
	struct cache_row *r = cpu_row(&cache_rows);

	if (r)
		SUM(r->added, cache_pages(raw, folio));
}

ON(writeback_dirty_folio, struct folio *folio, struct address_space *mapping)
{
	cache_dirty(raw, folio);
}

ON(writeback_dirty_page, struct folio *folio, struct address_space *mapping)
{
	cache_dirty(raw, folio);
}

/* A buffer is a block of the file system, which is a page or a part of one. */
ON(block_dirty_buffer, struct buffer_head *buffer)
{
	struct cache_row *r = cpu_row(&cache_rows);

	if (r)
		COUNT(r->dirtied_buffers);
}

ON_ENTRY(folio_mark_accessed, struct folio *folio)
{
	cache_access(raw, folio);
}

/* What had this name before 5.16; later a call of it goes on to folio_mark_accessed. */
ON_ENTRY(mark_page_accessed, struct folio *folio)
{
	cache_access(raw, folio);
}
