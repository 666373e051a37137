/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Block I/O by process, disk and direction, with times. Where bioperpid is on it counts for both; the time of issue is ours. */
#include "shared/owners.bpf.h"

ON(block_io_start, struct request *rq)
{
	if (!bioperpid_on)
		owner_begin(raw, rq);
}

ON_ENTRY(blk_account_io_start, struct request *rq)
{
	if (!bioperpid_on)
		owner_begin(raw, rq);
}

ON_ENTRY(__blk_account_io_start, struct request *rq)
{
	if (!bioperpid_on)
		owner_begin(raw, rq);
}

ON(block_bio_queue, struct bio *bio)
{
	if (!bioperpid_on)
		owner_bio(raw, bio);
}

ON(block_rq_issue, struct request *rq)
{
	owner_issue(raw, rq);
}

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	if (!bioperpid_on)
		owner_complete(raw, rq, nr_bytes);
}
