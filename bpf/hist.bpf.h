/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Powers of two in microseconds: slot 0 holds 0-1, slot i holds 2^i to 2^(i+1)-1, the last slot all that is longer. */
#pragma once

#include "probe.bpf.h"

#define HIST_SLOTS 32

static __always_inline __u64 usec_slot(__u64 ns)
{
	__u64 us = ns / 1000, slot, step;

	slot = (us > 0xffffffff) << 5;
	us >>= slot;
	step = (us > 0xffff) << 4;
	us >>= step;
	slot |= step;
	step = (us > 0xff) << 3;
	us >>= step;
	slot |= step;
	step = (us > 0xf) << 2;
	us >>= step;
	slot |= step;
	step = (us > 0x3) << 1;
	us >>= step;
	slot |= step;
	slot |= us >> 1;
	if (slot > HIST_SLOTS - 1)
		slot = HIST_SLOTS - 1;
	/*
	 * Adding and taking off an unknown number makes the verifier forget by which of 32 ways it came here: without it a
	 * program with two of these passes the limit of a million instructions on 6.12 to 6.18.
	 */
	asm volatile("%0 += %1; %0 -= %1" : "+r"(slot) : "r"(ns));
	BOUND(slot, 31);
	return slot;
}
