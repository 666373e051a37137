/* SPDX-License-Identifier: GPL-2.0-or-later */
/* TCP bytes by process and connection, of which the agent makes totals of processes. */
#include "shared/flow_counts.bpf.h"
