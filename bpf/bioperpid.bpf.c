/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Bytes of block I/O by process and disk. With biotop on too, this counts for both. */
#include "shared/owners.bpf.h"

ON(block_io_start, struct request *rq)
{
	owner_begin(raw, rq);
}

ON_ENTRY(blk_account_io_start, struct request *rq)
{
	owner_begin(raw, rq);
}

ON_ENTRY(__blk_account_io_start, struct request *rq)
{
	owner_begin(raw, rq);
}

ON(block_bio_queue, struct bio *bio)
{
	owner_bio(raw, bio);
}

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	owner_complete(raw, rq, nr_bytes);
}
