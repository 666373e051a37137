/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Taking a free place in a table that the agent maps, without compare-and-swap (5.10 has none): the claim is a locked add,
 * and whoever reads 1 afterwards owns the place. If two come at once both may read 2: then neither does, and the agent
 * sets the place free again when it finds it claimed without a key.
 */
#pragma once

#include "probe.bpf.h"

static __always_inline bool claim(__u64 *claims)
{
	if (*(volatile __u64 *)claims)
		return false;
	__sync_fetch_and_add(claims, 1);
	return *(volatile __u64 *)claims == 1;
}
