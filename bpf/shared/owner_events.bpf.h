/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Handlers of the beginning and the end of a request, for modules that count block I/O by process. The module that includes this has
 *
 *   OWN(counts)()   whether it is the one that counts: two that count into the same rows would count twice
 */
#include "owners.bpf.h"

ON(block_io_start, struct request *rq)
{
	if (OWN(counts)())
		owner_begin(raw, rq);
}

ON_ENTRY(blk_account_io_start, struct request *rq)
{
	if (OWN(counts)())
		owner_begin(raw, rq);
}

ON_ENTRY(__blk_account_io_start, struct request *rq)
{
	if (OWN(counts)())
		owner_begin(raw, rq);
}

ON(block_bio_queue, struct bio *bio)
{
	if (OWN(counts)())
		owner_bio(raw, bio);
}

ON(block_rq_complete, struct request *rq, int error, unsigned int nr_bytes)
{
	if (OWN(counts)())
		owner_complete(raw, rq, nr_bytes);
}
