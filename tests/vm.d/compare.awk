# Reads the console of a virtual machine (what init prints) and yields a line for each module of each pass, and the release:
#   release RELEASE
#   cell PASS MODULE KINDS|loads:KINDS|none|wrong EXPLANATION
#   test WAY NAME ok|skipped|wrong EXPLANATION, `ok repeated: EXPLANATION` where only its repetition passed
# KINDS are the ways its hooks are attached, joined by commas, blanks in them as ~; a count that differs from the kernel's own makes it `wrong`.

{ sub(/\r$/, ""); sub(/^.*@@ /, "@@ ") }
/^@@ pass / { pass = $3; passes[++npasses] = pass; next }
/^@@ repeated / { again = 1; test = panicked = section = ""; next }
/^@@ / { part = $2; way = $3; again = 0; test = panicked = section = ""; next }

# What the tests print: a section for each with output, then lists of the names that passed and failed.
part == "tests" && /^@@/ { next }
part == "tests" && $1 == "----" && $3 == "stdout" { test = $2; next }
part == "tests" && $1 == "skipped:" { skip[way, test] = $0; sub(/^skipped: */, "", skip[way, test]) }
part == "tests" && panicked == test && !((way, test) in panic) { panic[way, test] = place " " $0 }
part == "tests" && / panicked at / { panicked = test; place = $0; sub(/.* panicked at /, "", place) }
part == "tests" && /^(successes|failures):$/ { section = $1 }
part == "tests" && section != "" && /^    [a-z0-9_:]+$/ {
	if (!((way, $1) in result))
		tests[++ntests] = way SUBSEP $1
	if (section == "failures:")
		result[way, $1] = "wrong " panic[way, $1]
	else if ((way, $1) in skip && !again)
		result[way, $1] = "skipped " skip[way, $1]
	else if (!((way, $1) in skip))
		result[way, $1] = again ? "ok repeated: " panic[way, $1] : "ok"
	# A repetition that is skipped leaves the failure.
}

part == "release" { print "release", $1 }
# Each boot names them, and a kernel may have its say in between.
part == "disks" && (!/^\/dev\/[a-z0-9-]+ [a-z0-9-]+$/ || seen_disk[$1]++) { next }
part == "disks" { disks++ }
part == "disks" && $2 != "-" { loads_of[$2]++; loads++ }

part == "check" {
	split($0, cell, /  +/)
	module = cell[1]
	if (module == "MODULE" || cell[4] == "")
		next
	if (!((pass, module) in kinds)) {
		kinds[pass, module] = ""
		order[pass, ++modules[pass]] = module
	}
	if (cell[4] ~ /^(ok$|loaded, )/ && index("," kinds[pass, module] ",", "," cell[3] ",") == 0)
		kinds[pass, module] = kinds[pass, module] (kinds[pass, module] == "" ? "" : ",") cell[3]
	else if (cell[4] ~ /^FAILED: /)
		failure[pass, module] = substr(cell[4], 9)
	else if (cell[4] ~ /^refused: /)
		refusal[pass, module] = cell[3] " " cell[4]
}

# Reads, writes and discards that completed; a flush counts as a write as well. Devices that stand on other disks, or on none, have
# no requests of their own.
part ~ /^(outer|before|after|end)$/ && $3 ~ /^(nvme|vd|nullb|sd|loop|ram)/ { requests[pass, part] += $4 + $8 + $15 }
part ~ /^(outer|before|after|end)$/ && $1 == "processes" { forks[pass, part] = $2 }
# The last number of a CPU: how often a task arrived on it.
part ~ /^(outer|before|after|end)$/ && $1 ~ /^cpu[0-9]/ { arrivals[pass, part] += $10 }

part == "load" && NF == 2 { load[pass, $1] = $2 }
part == "load" && NF != 2 && $1 != "done" { said[pass] = $0 }

part == "values" { seen_values[pass] = 1 }
part == "values" && NF == 0 { section = "" }
part == "values" && /^bcc\./ { section = $1; next }
part == "values" && NF == 1 && $1 !~ /^[0-9]/ { section = $1; next }
part == "values" { if (sub(/^instance +/, "") && NF == 1) { section = $1; next } }
part == "values" && /^ *pid +comm +laddr .* duration\[us\]$/ { section = "tcplife"; next }
part == "values" && /^ *pid +comm +laddr .* rx\[B\] +tx\[B\]$/ { section = "tcptop"; next }
part == "values" && /^ *pid +tid +ppid +uid +comm / { section = "exitsnoop"; next }
part == "values" && /^ *comm +pid +ppid +ret +args$/ { section = "execsnoop"; next }
part == "values" && /^ *count +avg\[ns\] +cml\[ns\]$/ { section = "syscount"; next }
part == "values" && /^ *count +fail +avg\[ns\] +cml\[ns\]$/ { section = "kprobe_hits"; next }
part == "values" && /^ *pid +comm +direction .* duration\[us\]$/ { section = "biotop"; next }
part == "values" && /^ *tcp\.send\.calls/ { section = "netproc"; next }
part == "values" && /^ *tx\[B\] +rx\[B\]$/ { section = "tcpperpid"; next }
# Rows without an instance: the fields below are counted from one.
part == "values" && section ~ /^(tcplife|tcptop|execsnoop|biotop)$/ { $0 = "- " $0 }
part == "values" && section == "tcpperpid" && $1 + 0 == load[pass, "pid"] + 0 && $2 == "load" && NF == 4 { process[pass] = $0 }
part == "values" && section == "total[B]" && NF == 3 && $1 ~ ("::0*" load[pass, "pid"] "$") && $2 == "load" {
	sub(/::.*/, "", $1)
	bytes[pass, $1] = $3
	bytes[pass] += $3
}
part == "values" && section == "biotop" && $2 == load[pass, "pid"] && $3 == "load" {
	top[pass, $7, $4, "io"] = $8
	top[pass, $7, $4, "bytes"] = $9
	top[pass] += $8
}
part == "values" && $1 == "total" { total[pass, section] = $3; section = ""; next }
part == "values" && section == "bcc.disk.all.latency" && $2 == "->" && $1 >= 1024 { slow[pass] += $5 }
part == "values" && section == "sysfork" && NF == 1 { total[pass, "sysfork"] = $1 }
# A name with an address and a port at each end is of tcpretrans, others are of exectop.
part == "values" && section == "count" && NF == 2 && $1 ~ /:[0-9]+::.*:[0-9]+$/ {
	port = $1
	sub(/.*:/, "", port)
	repeated[pass, port] += $2
	next
}
part == "values" && section == "count" && NF == 2 { execs[pass, $1] = $2 }
part == "values" && section == "exitsnoop" && $3 == load[pass, "pid"] && $5 " " $6 " " $7 == "counted 0 0" { ended[pass]++ }
part == "values" && section == "execsnoop" && $4 == load[pass, "pid"] && $2 " " $5 " " $6 == "counted 0 /bin/counted" && NF == 6 { snooped[pass]++ }
part == "values" && section == "execsnoop" && $3 == load[pass, "pid"] && $2 " " $5 " " $6 " " $7 " " $NF == "load 0 /bin/load /dev/nvme0n1 repeat-segments" { snooped_load[pass]++ }
part == "values" && section == "tcptop" && $2 == load[pass, "pid"] && $3 == "load" {
	connections[pass]++
	received[pass] += $8
	sent[pass] += $9
}
part == "values" && section == "syscount" && $1 == "sched_rr_get_interval" { calls[pass] = $2 }
part == "values" && section == "kprobe_hits" && $1 ~ /^__[a-z0-9]+_sys_sched_rr_get_interval$/ { calls[pass, "function"] = $2; calls[pass, "failed"] = $3 }
part == "values" && section == "hits" && NF == 2 { hits[pass, $1] = $2 }
part == "values" && section == "tcplife" && NF == 10 { sessions[pass, ++nsessions[pass]] = $0 }
part == "values" && section == "netproc" && $1 + 0 == load[pass, "pid"] + 0 && NF == 10 { traffic[pass] = $0 }
# Rows of netproc begin with a process and its name, those of cgroup_net with a path, which is there again before the packets.
part == "values" && section == "netproc" && (NF == 10 || NF == 14) {
	is_process = $1 ~ /^[0-9]+$/
	packets[pass] += is_process ? 0 : $13
	for (i = 1; i <= 8; i++)
		moved[pass, is_process, i] += $(is_process ? i + 2 : i + 1)
}

# A count of all between two moments that enclose the agent's must be at most theirs, and at least that of two moments within.
function bracket(what, counted, of,    least, most) {
	least = of[pass, "after"] - of[pass, "before"]
	most = of[pass, "end"] - of[pass, "outer"]
	if (counted == "")
		return "no count of " what "; "
	if (counted < least || counted > most)
		return counted " " what ", the kernel counted " (least == most ? least : least " to " most) "; "
	return ""
}

function at_least(what, counted, least) {
	return counted + 0 < least + 0 ? (counted + 0) " " what ", expected at least " (least + 0) "; " : ""
}

function exactly(what, counted, expected) {
	return counted + 0 != expected + 0 || expected == "" ? (counted + 0) " " what ", expected " (expected + 0) "; " : ""
}

# The kernel counts what was acknowledged and received with the sequence numbers of SYN and FIN, one each.
function near(bytes, expected) {
	return bytes >= expected && bytes <= expected + 2
}

function is_full(address, port) { # a port of one family may be anybody's in the other
	return port == load[pass, (address ~ /:/) ? "full_port_ipv6" : "full_port_ipv4"]
}

function repeated_of_load(    ipv4, ipv6) {
	ipv4 = repeated[pass, load[pass, "full_port_ipv4"]]
	ipv6 = repeated[pass, load[pass, "full_port_ipv6"]]
	return at_least("segments repeated over IPv4", ipv4, 1) at_least("segments repeated over IPv6", ipv6, 1) \
		exactly("segments repeated", ipv4 + ipv6, load[pass, "repeated_segments"])
}

function sessions_of_load(    i, j, f, g, to, from, count, server, client, paired) {
	to = load[pass, "session_to_server"]
	from = load[pass, "session_to_client"]
	for (i = 1; i <= nsessions[pass]; i++) {
		split(sessions[pass, i], f, " ")
		if (f[2] != load[pass, "pid"] || f[3] != "load" || f[10] <= 0)
			continue
		if (is_full(f[4], f[5]) || is_full(f[6], f[7])) # with no traffic: those are tcpretrans'
			continue
		count++
		client += near(f[8], to) && near(f[9], from)
		server += near(f[8], from) && near(f[9], to)
		for (j = 1; j <= nsessions[pass]; j++) {
			split(sessions[pass, j], g, " ")
			paired += f[4] == g[6] && f[5] == g[7] && f[6] == g[4] && f[7] == g[5]
		}
	}
	return exactly("sessions of the load", count, load[pass, "sessions"]) \
		exactly("client ends with the bytes sent", client, load[pass, "sessions"] / 2) \
		exactly("server ends with the bytes sent", server, load[pass, "sessions"] / 2) \
		exactly("ends whose other end has the same addresses", paired, load[pass, "sessions"])
}

function traffic_of_load(    f, calls) {
	if (traffic[pass] == "")
		return "no row of the load; "
	split(traffic[pass], f, " ")
	return exactly("TCP send calls", f[3], load[pass, "tcp_calls"]) exactly("TCP bytes sent", f[4], load[pass, "tcp_bytes"]) \
		at_least("TCP receive calls", f[5], load[pass, "sessions"]) exactly("TCP bytes received", f[6], load[pass, "tcp_bytes"]) \
		exactly("UDP send calls", f[7], load[pass, "udp_calls"]) exactly("UDP bytes sent", f[8], load[pass, "udp_bytes"]) \
		exactly("datagrams received", f[9], load[pass, "udp_calls"]) exactly("UDP bytes received", f[10], load[pass, "udp_bytes"])
}

function process_of_load(    f) {
	if (process[pass] == "")
		return "no row of the load; "
	split(process[pass], f, " ")
	return exactly("bytes sent", f[3], load[pass, "tcp_bytes"]) exactly("bytes received", f[4], load[pass, "tcp_bytes"])
}

function bytes_of_load(    disk, problem) {
	for (disk in loads_of)
		problem = problem exactly("bytes of " disk, bytes[pass, disk], loads_of[disk] * load[pass, "bytes_per_disk"])
	return problem exactly("bytes of all disks", bytes[pass], loads * load[pass, "bytes_per_disk"])
}

function one_way(disk, way, share) {
	return exactly(way " requests of " disk, top[pass, disk, way, "io"], share * load[pass, "requests_per_disk"]) \
		exactly(way " bytes of " disk, top[pass, disk, way, "bytes"], share * load[pass, "bytes_per_disk"])
}

# Half of them are reads, half are writes.
function requests_of_load(    disk, problem) {
	for (disk in loads_of)
		problem = problem one_way(disk, "R", loads_of[disk] / 2) one_way(disk, "W", loads_of[disk] / 2)
	return problem exactly("requests of all disks", top[pass], loads * load[pass, "requests_per_disk"])
}

# Calls and bytes of all cgroups are those of all processes, in eight columns.
function traffic_by_cgroup(    i, problem) {
	for (i = 1; i <= 8; i++)
		problem = problem exactly("by cgroup in column " i, moved[pass, 0, i] + 0, moved[pass, 1, i] + 0)
	return problem at_least("bytes sent over TCP", moved[pass, 0, 2], load[pass, "tcp_bytes"]) \
		at_least("packets sent", packets[pass] + 0, moved[pass, 0, 5])
}

function fault(module) {
	if (module == "biolatency")
		return bracket("requests", total[pass, "bcc.disk.all.latency"], requests) \
			exactly("devices", disks, 5) \
			at_least("requests in all", total[pass, "bcc.disk.all.latency"], loads * load[pass, "requests_per_disk"]) \
			at_least("requests of 1 ms or more, as null_blk makes them", slow[pass], load[pass, "requests_per_disk"])
	if (module == "bioperpid")
		return bytes_of_load()
	if (module == "biotop")
		return requests_of_load()
	if (module == "runqlat" && pass ~ /^by-(name|line)/)
		return at_least("arrivals", total[pass, "bcc.runq.latency"], load[pass, "switches"]) \
			at_least("arrivals of others", arrivals[pass, "after"] - arrivals[pass, "before"], total[pass, "bcc.runq.latency"])
	if (module == "runqlat")
		return bracket("arrivals on a CPU", total[pass, "bcc.runq.latency"], arrivals) \
			at_least("arrivals", total[pass, "bcc.runq.latency"], load[pass, "switches"])
	if (module == "sysfork")
		return bracket("new tasks", total[pass, "sysfork"], forks) \
			at_least("new tasks", total[pass, "sysfork"], 2 * load[pass, "children"])
	if (module == "exectop")
		return exactly("execs of `counted`", execs[pass, "counted"], load[pass, "children"]) \
			exactly("execs of `load`", execs[pass, "load"], 1)
	if (module == "tcplife")
		return sessions_of_load()
	if (module == "netproc")
		return traffic_of_load()
	if (module == "cgroup_net")
		return traffic_by_cgroup()
	if (module == "tcpperpid")
		return process_of_load()
	if (module == "execsnoop")
		return exactly("execs of `counted` by the load", snooped[pass], load[pass, "children"]) \
			exactly("execs of the load", snooped_load[pass], 1)
	if (module == "exitsnoop")
		return exactly("ends of `counted` by the load", ended[pass], load[pass, "children"])
	if (module == "tcpretrans")
		return repeated_of_load()
	if (module == "tcptop")
		return exactly("ends of connections with traffic", connections[pass], load[pass, "sessions"]) \
			exactly("bytes sent", sent[pass], load[pass, "tcp_bytes"]) \
			exactly("bytes received", received[pass], load[pass, "tcp_bytes"])
	if (module == "syscount")
		return exactly("calls of sched_rr_get_interval", calls[pass], load[pass, "calls"])
	if (module == "tracepoint_hits")
		return exactly("hits of timer:itimer_state", hits[pass, "timer:itimer_state"], load[pass, "timers"]) \
			exactly("hits of syscalls:sys_enter_sched_rr_get_interval", hits[pass, "syscalls:sys_enter_sched_rr_get_interval"], load[pass, "calls"])
	if (module == "kprobe_hits")
		return exactly("calls of the kernel's function", calls[pass, "function"], load[pass, "calls"]) \
			exactly("calls of it that failed", calls[pass, "failed"], load[pass, "failed_calls"])
	if (module == "uprobe_hits")
		return exactly("calls of the load's function", hits[pass, "/bin/load::called"], load[pass, "function_calls"])
	if (module == "usdt_hits")
		return exactly("hits of the probe of the load", hits[pass, "/bin/load::passed"], load[pass, "passes"])
	return "loads"
}

END {
	for (t = 1; t <= ntests; t++) {
		split(tests[t], of, SUBSEP)
		print "test", of[1], of[2], result[of[1], of[2]]
	}
	for (p = 1; p <= npasses; p++) {
		pass = passes[p]
		for (m = 1; m <= modules[pass]; m++) {
			module = order[pass, m]
			if ((pass, module) in failure) {
				print "cell", pass, module, "none", failure[pass, module]
				continue
			}
			if (load[pass, "switches"] == "")
				problem = "the load did not finish: " said[pass] "; "
			else
				problem = fault(module)
			gsub(/ /, "~", kinds[pass, module])
			if (problem == "loads")
				print "cell", pass, module, "loads" (kinds[pass, module] == "" ? "" : ":") kinds[pass, module], refusal[pass, module]
			else if (problem == "")
				print "cell", pass, module, kinds[pass, module], refusal[pass, module]
			else
				print "cell", pass, module, "wrong", substr(problem, 1, length(problem) - 2)
		}
	}
}
