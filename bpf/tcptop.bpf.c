/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP bytes by process and connection, for the table of the busiest. */
#include "shared/flow_counts.bpf.h"
