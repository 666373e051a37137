/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Bytes of block I/O by process and disk. With biotop on too, this counts for both. */
#include "shared/owners.bpf.h"

static __always_inline bool OWN(counts)(void)
{
	return true;
}

#include "shared/owner_events.bpf.h"
