/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * SipHash-1-3 of words (Aumasson and Bernstein, 2012; include/linux/siphash.h has its sisters) with a key that only the agent knows
 * (src/kit/secret.rs): whoever chooses the names that are hashed cannot choose two with one hash. What is hashed has to say itself where
 * it ends.
 */
#pragma once

#include "probe.bpf.h"

const volatile __u64 hash_key[2];

struct sip {
	__u64 a, b, c, d;
};

#define ROTATE(word, bits) ((word) << (bits) | (word) >> (64 - (bits)))

static __always_inline void sip_round(struct sip *s)
{
	s->a += s->b;
	s->c += s->d;
	s->b = ROTATE(s->b, 13) ^ s->a;
	s->d = ROTATE(s->d, 16) ^ s->c;
	s->a = ROTATE(s->a, 32);
	s->c += s->b;
	s->a += s->d;
	s->b = ROTATE(s->b, 17) ^ s->c;
	s->d = ROTATE(s->d, 21) ^ s->a;
	s->c = ROTATE(s->c, 32);
}

static __always_inline void sip_begin(struct sip *s)
{
	s->a = hash_key[0] ^ 0x736f6d6570736575;
	s->b = hash_key[1] ^ 0x646f72616e646f6d;
	s->c = hash_key[0] ^ 0x6c7967656e657261;
	s->d = hash_key[1] ^ 0x7465646279746573;
}

static __always_inline void sip_add(struct sip *s, __u64 word)
{
	s->d ^= word;
	sip_round(s);
	s->a ^= word;
}

static __always_inline __u64 sip_end(struct sip *s)
{
	s->c ^= 0xff;
	sip_round(s);
	sip_round(s);
	sip_round(s);
	return s->a ^ s->b ^ s->c ^ s->d;
}
