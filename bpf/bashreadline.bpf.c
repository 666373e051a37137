/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Lines that people type at a shell with readline: what that returns. */
#include "shared/filter.bpf.h"
#include "shared/latest.bpf.h"

#define LINE_SIZE 256

struct bash_event {
	struct event_head head;
	__u32 pid;
	__u32 uid;
	__u8 comm[16];
	__u8 line[LINE_SIZE];
};

struct bash_row {
	__u64 all;
	__u64 pad[7];
};

LATEST(bash)
ROWS(bash_rows, struct bash_row);
EXPORT(struct bash_event);

const volatile __u64 bash_filter;

ON_EACH_CODE_RETURN(target, ctx)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u64 line = PT_REGS_RC(ctx);
	struct bash_event *e;

	if (!line || !filter_wants_current(bash_filter))
		return; /* the end of the input */
	LOSE(bash_rows, all);
	e = EVENT(bash, struct bash_event, pid);
	if (!e)
		return;
	e->pid = pid;
	e->uid = bpf_get_current_uid_gid();
	process_name((__u64 *)e->comm);
	if (bpf_probe_read_user_str(e->line, LINE_SIZE, (void *)line) < 0)
		e->line[0] = 0;
	bash_done(e);
}
