#!/bin/bash
# Install, Remove and Upgrade against this machine's own pmcd (conformance statement 70), from the checkout or unpacked release it is in, and
# in the PMDA directory.
# Needs root and PCP. Everything it changes is put back: pmcd.conf, the name space, configurations, whether pmcd runs.
set -u
src=$(cd "$(dirname "$0")/.." && pwd) || exit 1
[ "$(id -u)" -eq 0 ] || { echo "skipped: needs root"; exit 77; }
[ -r "${PCP_DIR:-}/etc/pcp.env" ] || { echo "skipped: PCP is not installed"; exit 77; }
# shellcheck disable=SC2034 # prerequisites.sh reads it
prog=tests/install.sh
# shellcheck source=scripts/prerequisites.sh
. "$src/scripts/prerequisites.sh"
set +u
# shellcheck disable=SC1091 # belongs to PCP
. "${PCP_DIR:-}/etc/pcp.env"
set -u
pmda=$PCP_PMDAS_DIR/corebcc
config=$PCP_SYSCONF_DIR/corebcc/corebcc.conf
old=$PCP_SYSCONF_DIR/bcc/bcc.conf
root=$PCP_VAR_DIR/pmns/root
python_line='bcc	149	pipe	binary notready	python /x/pmdabcc.python'
kept=("$PCP_PMCDCONF_PATH" "$root" "$PCP_VAR_DIR/pmns/"{bcc,bpf,other} "$pmda" "$(dirname "$config")" "$(dirname "$old")"
	"$PCP_PMDAS_DIR/bcc/bcc.conf" "$PCP_BIN_DIR/pmdacorebcc" "$PCP_BIN_DIR/bpf-names" "$PCP_MAN_DIR/man1/pmdacorebcc.1" "$PCP_MAN_DIR/man5/corebcc.conf.5" "$PCP_MAN_DIR/man8/bpf-names.8" "$PCP_MAN_DIR/man1/pcp-corebcc.1"
	"$PCP_BINADM_DIR/"pcp-{corebcc,biolatency,runqlat}
	"${PCP_SHARE_DIR%/*}/bash-completion/completions/pmdacorebcc")
# files for PCP's own programs: below $PCP_SYSCONF_DIR, and linked from $PCP_VAR_DIR/config
linked="$(echo pmlogconf/corebcc/{agent,biolatency,metric-status,netproc,runqlat,status} pmieconf/corebcc/{disk_read_latency,module_down}) pmlogrewrite/corebcc_cachestat.conf pmchart/Bcc.Overview"
consumers="pmrep/corebcc.conf dstat/corebcc htop/columns/corebcc htop/meters/corebcc htop/screens/corebcc $linked"
for name in $consumers pmlogrewrite/corebcc_netproc.conf; do
	kept+=("$PCP_SYSCONF_DIR/$name" "$PCP_VAR_DIR/config/$name")
done
scratch=$(mktemp -d) || exit 1
failed=0

pmcd_runs() { pminfo -v pmcd.version >/dev/null 2>&1; }
service() { if [ -d /run/systemd/system ]; then systemctl "$1" pmcd; else "$PCP_RC_DIR/pmcd" "$1" </dev/null; fi; }

there() { [ -e "$1" ] || [ -L "$1" ]; }
put_back() {
	local i
	service stop >/dev/null 2>&1
	for i in "${!kept[@]}"; do
		rm -rf "${kept[$i]}"
		if there "$scratch/kept$i"; then cp -a "$scratch/kept$i" "${kept[$i]}"; fi
	done
	rm -rf "$scratch"
	if $was_running; then service start >/dev/null 2>&1; fi
}

was_running=false
if pmcd_runs; then was_running=true; fi
for i in "${!kept[@]}"; do
	if there "${kept[$i]}"; then cp -a "${kept[$i]}" "$scratch/kept$i"; fi
done
trap put_back EXIT

# check FACT COMMAND...
check() {
	local fact=$1
	shift
	if "$@" >"$scratch/check" 2>&1; then
		echo "ok: $fact"
	else
		echo "FAILED: $fact ($*)"
		sed 's/^/    /' "$scratch/check"
		failed=$((failed + 1))
	fi
}
not() { ! "$@"; }
# run FACT DIRECTORY COMMAND...: the command succeeds without input; its output stays in $scratch/out
run() {
	local fact=$1 directory=$2
	shift 2
	if (cd "$directory" && timeout 900 "$@" </dev/null >"$scratch/out" 2>&1); then
		echo "ok: $fact"
	else
		echo "FAILED: $fact: $* in $directory ended with status $?"
		sed 's/^/    /' "$scratch/out"
		tail -n 20 "$PCP_LOG_DIR/pmcd/corebcc.log" 2>/dev/null | sed 's/^/    corebcc.log: /'
		failed=$((failed + 1))
	fi
}
said() { grep -qF -e "$1" "$scratch/out" || { cat "$scratch/out"; false; }; }
lines() { [ "$(grep -cE "$1" "$2")" -eq "$3" ] || { grep -nE "$1" "$2"; false; }; }
registered_once() {
	lines '^corebcc[[:space:]]+149[[:space:]]' "$PCP_PMCDCONF_PATH" 1 && lines '^[a-z]+[[:space:]]+149[[:space:]]' "$PCP_PMCDCONF_PATH" 1 &&
		lines '^[[:space:]]+bcc[[:space:]]+149:\*:\*' "$root" 1
}
answers() { for _ in $(seq 60); do pminfo bcc 2>/dev/null | grep -q '^bcc\.' && return 0; sleep 0.5; done; pminfo bcc; return 1; }
gone() { ! pminfo bcc >/dev/null 2>&1 && lines '^(corebcc|bcc)[[:space:]]' "$PCP_PMCDCONF_PATH" 0 && lines '^[[:space:]]+bcc[[:space:]]' "$root" 0; }
placed() {
	local name
	for name in $consumers; do cmp "$pmda/consumers/$name" "$PCP_SYSCONF_DIR/$name" || return 1; done
	for name in $linked; do cmp "$pmda/consumers/$name" "$PCP_VAR_DIR/config/$name" || return 1; done
}
on_path() {
	[ "$(readlink -f "$PCP_BIN_DIR/pmdacorebcc")" = "$(readlink -f "$pmda/pmdacorebcc")" ] && pmdacorebcc --version &&
		[ "$(readlink -f "$PCP_BIN_DIR/bpf-names")" = "$(readlink -f "$pmda/bpf-names")" ] && cmp "$pmda/pmdacorebcc.1" "$PCP_MAN_DIR/man1/pmdacorebcc.1" && cmp "$pmda/corebcc.conf.5" "$PCP_MAN_DIR/man5/corebcc.conf.5" &&
		pcp biolatency -t 0.2 -s 1 && pcp corebcc runq
}
agent_pid() { pgrep --ns $$ --nslist net -o -f "^$pmda/pmdacorebcc -d "; }
# a line for each tenth of a second without names
watch_names() { while sleep 0.1; do pminfo bcc 2>/dev/null | grep -q '^bcc\..*\.' || echo gone; done >"$scratch/gone"; }
nothing_on_path() {
	! ls -d "$PCP_BINADM_DIR/"pcp-{corebcc,biolatency,runqlat} "$PCP_BIN_DIR/pmdacorebcc" "$PCP_BIN_DIR/bpf-names" "$PCP_MAN_DIR/man1/pmdacorebcc.1" "$PCP_MAN_DIR/man5/corebcc.conf.5" \
		"${PCP_SHARE_DIR%/*}/bash-completion/completions/pmdacorebcc" 2>/dev/null
}
# those that tell how to work on the sources go to the sources
links_lead() {
	local name missing=0
	# shellcheck disable=SC2013 # names are words
	for name in $(grep -o '](\(docs\|consumers\|SECURITY\)[^)#]*' "$pmda/README.md" | cut -c 3- | sort -u); do
		[ -f "$pmda/$name" ] || { echo "$name"; missing=1; }
	done
	return $missing
}
no_consumers() { ! find "$PCP_SYSCONF_DIR"/{pmrep,dstat,htop,pmchart,pmlogconf,pmlogrewrite,pmieconf}/ "$PCP_VAR_DIR"/config/ -name '*corebcc*' -o -name 'Bcc.*' | grep .; }
add_python_line() { sed -i "/^\[access\]/i $python_line" "$PCP_PMCDCONF_PATH"; }
replace_by_python_line() { sed -i "s|^corebcc[[:space:]].*|$python_line|" "$PCP_PMCDCONF_PATH"; }

# a machine with the Python agent registered and configured, and nothing of ours
rm -rf "$pmda" "$(dirname "$config")" "$PCP_VAR_DIR/pmns/bcc"
sed -i -E '/^(corebcc|bcc)[[:space:]]/d' "$PCP_PMCDCONF_PATH"
add_python_line
mkdir -p "$(dirname "$old")"
printf '%s\n' '[pmda]' 'modules = biolatency,runqlat,netproc' '[biolatency]' 'module = biolatency' 'cluster = 0' '[runqlat]' 'module = runqlat' \
	'cluster = 4' '[netproc]' 'module = netproc' 'cluster = 40' '[tracepoint_hits]' 'module = tracepoint_hits' 'cluster = 100' 'tracepoints = bcc-tracepoint.conf' >"$old"
echo 'sched:sched_switch' >"$(dirname "$old")/bcc-tracepoint.conf"
cp "$old" "$scratch/bcc.conf"

mkdir "$scratch/user"
chmod 755 "$scratch" "$scratch/user"
cp "$src/Install" "$src/Remove" "$src/Upgrade" "$scratch/user/"
for script in Install Remove Upgrade; do
	check "$script refuses an ordinary user with one line" \
		sh -c "out=\$(setpriv --reuid=65534 --regid=65534 --clear-groups $scratch/user/$script 2>&1); [ \$? -eq 1 ] && [ \"\$out\" = '$script: must be root: run it with sudo' ]"
done

run "Install from where it was unpacked" "$src" ./Install
check "it names the agent it replaces" said /x/pmdabcc.python
check "it names the configuration it adopts" said "$(readlink -f "$old")"
check "it shows the disk latency" said bcc.disk.all.latency
check "the adopted configuration equals the original" cmp "$old" "$config"
check "the original is untouched" cmp "$scratch/bcc.conf" "$old"
check "the list of probes came along" cmp "$(dirname "$old")/bcc-tracepoint.conf" "$(dirname "$config")/bcc-tracepoint.conf"
check "one line and one subtree" registered_once
check "the metrics answer" pminfo -f bcc.disk.all.latency
check "the files for PCP's programs are in place" placed
check "the program, bpf-names and the man page are on the path" on_path
check "bash finds completions" grep -q 'bcc.disk.all.latency' "${PCP_SHARE_DIR%/*}/bash-completion/completions/pmdacorebcc"
check "the links of the README lead somewhere" links_lead
check "a compiled example runs" pmdacorebcc --check "$pmda/examples/calls.yaml"
if [ -e "$PCP_VAR_DIR/config/pmlogrewrite/bcc_migrate.conf" ]; then
	check "no second rule for what PCP renames itself" not test -e "$PCP_SYSCONF_DIR/pmlogrewrite/corebcc_netproc.conf"
fi
if ! grep -q '^bpf[[:space:]]' "$PCP_PMCDCONF_PATH"; then
	check "nobody gets pmdabpf's names unasked" not pminfo -d bpf.proc.net.tcp.send.bytes
	cp "$config" "$scratch/config"
	run "pmdabpf's names on demand, by the command on the path" / bpf-names on
	check "clients find them" pminfo -f bpf.proc.net.tcp.send.packets
	check "each section of such a module has its line, once" lines "^bpf_names" "$config" "$(grep -Ec "^module = ($(sed -n "s/^of_pmdabpf='\(.*\)'$/\1/p" "$pmda/registration.sh"))\$" "$config")"
	cp "$config" "$scratch/asking"
	(cd "$PCP_VAR_DIR/pmns" && pmnsdel -n root bpf)
	run "Upgrade of a name space that lost them" "$pmda" ./Upgrade
	check "the root is back" lines '^[[:space:]]+bpf[[:space:]]+149:\*:\*' "$root" 1
	cp "$PCP_PMCDCONF_PATH" "$scratch/conf"
	sed -i '/^\[access\]/i bpf	157	pipe	binary	/bin/false' "$PCP_PMCDCONF_PATH"
	check "they are refused where pmdabpf is registered" not "$pmda/bpf-names" on
	run "Upgrade after pmdabpf was registered" "$pmda" ./Upgrade
	check "it takes them out of the name space" lines '^[[:space:]]+bpf[[:space:]]' "$root" 0
	check "it takes the lines out of the configuration" cmp "$scratch/config" "$config"
	cat "$scratch/conf" >"$PCP_PMCDCONF_PATH"
	run "pmdabpf's names again" "$pmda" ./bpf-names on
	run "pmdabpf's names, a second time" "$pmda" ./bpf-names on
	check "the configuration is as after the first time" cmp "$scratch/asking" "$config"
	run "pmdabpf's names no more" "$pmda" ./bpf-names off
	check "clients find none" not pminfo -d bpf.proc.net.tcp.send.packets
	check "the configuration is as before" cmp "$scratch/config" "$config"
	run "pmdabpf's names once more" "$pmda" ./bpf-names on
fi

echo '# edited here' >>"$config"
run "Install again, in the PMDA directory" "$pmda" ./Install
check "one line and one subtree after a second Install" registered_once
check "the configuration that is there is kept" grep -q 'edited here' "$config"
run "Install with options" "$pmda" ./Install -e -Q -V
check "one line and one subtree after a third Install" registered_once
check "the metrics answer after a third Install" answers

cp "$PCP_PMCDCONF_PATH" "$scratch/conf"
# What a package does after its upgrade: the program is started again, and names are gone for less than a second, instead of three.
before=$(agent_pid)
watch_names &
watching=$!
# shellcheck disable=SC2016 # for that script to expand
run "a new start of the agent" "$pmda" sh -c '. "$PCP_DIR/etc/pcp.env"; . ./registration.sh; NAMESPACE=$PCP_VAR_DIR/pmns/root; is_current && renew'
check "the metrics answer after that" answers
kill $watching
wait $watching 2>/dev/null
check "it is another process" test "$before" != "$(agent_pid)"
check "its names were gone for less than a second" test "$(wc -l <"$scratch/gone")" -lt 10
check "pmcd.conf has not been touched" cmp "$scratch/conf" "$PCP_PMCDCONF_PATH"
sed -i 's|^corebcc.*|& -l /tmp/x.log|; s|pmdacorebcc -d|elsewhere/pmdacorebcc -d|' "$PCP_PMCDCONF_PATH"
check "another program's line would be written again" not sh -c ". \"\$PCP_DIR/etc/pcp.env\"; cd $pmda; . ./registration.sh; NAMESPACE=$root; is_current"
cp "$scratch/conf" "$PCP_PMCDCONF_PATH"
run "Upgrade with nothing to do" "$pmda" ./Upgrade
check "it is silent" test ! -s "$scratch/out"
check "it leaves pmcd.conf alone" cmp "$scratch/conf" "$PCP_PMCDCONF_PATH"
replace_by_python_line
run "Upgrade of a Python line" "$pmda" ./Upgrade
check "one line after Upgrade" registered_once
check "the metrics answer after Upgrade" answers
add_python_line
run "Upgrade with a Python line beside ours" "$pmda" ./Upgrade
check "one line after that" registered_once

# what pmdabpf's Upgrade does from PCP 7.1.1 on, then what an upgrade of PCP does
rm -f "$PCP_VAR_DIR/pmns/bcc"
(cd "$PCP_VAR_DIR/pmns" && ./Rebuild -us)
check "the subtree outlives its file and a rebuilt name space" registered_once
(cd "$PCP_VAR_DIR/pmns" && pmnsdel -n root bcc)
run "Upgrade of a name space that lost the subtree" "$pmda" ./Upgrade
check "the subtree is back" registered_once
check "the metrics answer again" answers

# a configuration that is wrong in part, and one that is none
cp "$config" "$scratch/right"
sed -i 's/^modules = .*/&,tracepoint_hits,nope/; s/^tracepoints = .*/#&/' "$config"
grep -q '^module_failure_fatal' "$config" || sed -i 's/^\[pmda\]$/&\nmodule_failure_fatal = False/' "$config"
run "Install with errors in the configuration" "$pmda" ./Install
check "it shows them" said "[tracepoint_hits] has no option \`tracepoints\`"
check "it shows all of them" said "there is no section or module \`nope\`"
check "it says that the agent is registered all the same" said "the agent is registered, with problems"
check "what is right answers" pminfo -f bcc.disk.all.latency
check "the agent says what is wrong" sh -c 'pminfo -f bcc.agent.configuration.status | grep "2 errors.*nope.*tracepoints"'
echo '[pmda' >"$config"
run "Install with a configuration that cannot be parsed" "$pmda" ./Install
check "it shows the line" said "$config:1: expected [section]"
check "the agent says so, too" sh -c 'pminfo -f bcc.agent.configuration.status | grep "no module runs.*corebcc.conf:1:"'
cp "$scratch/right" "$config"

# an agent that ends at once: the reason is shown
mv "$pmda/pmdacorebcc" "$scratch/pmdacorebcc"
# shellcheck disable=SC2016 # for that script to expand
printf '#!/bin/sh\n[ "$1" != --check ] || exit 0\necho "corebcc cannot work today" >corebcc.log\nexit 1\n' >"$pmda/pmdacorebcc"
chmod 755 "$pmda/pmdacorebcc"
check "Install of an agent that ends at once fails" not sh -c "cd $pmda && ./Install </dev/null >$scratch/out 2>&1"
check "it says that the agent does not answer" said "does not answer"
check "it shows why" said "cannot work today"
mv "$scratch/pmdacorebcc" "$pmda/pmdacorebcc"
run "Install of the agent itself, after that" "$pmda" ./Install
check "the metrics answer after that" answers

sed -i 's/^\[runqlat\]$/&\nprefix = other./' "$config"
run "Install with a second prefix" "$pmda" ./Install
check "both prefixes are in the name space" lines '^[[:space:]]+(bcc|other)[[:space:]]+149:\*:\*' "$root" 2

run "Remove" "$pmda" ./Remove
check "no line and no subtree after Remove" gone
check "no other prefix after Remove" lines '^[[:space:]]+[a-z]+[[:space:]]+149:\*:\*' "$root" 0
check "no file for PCP's programs after Remove" no_consumers
check "nothing is on the path after Remove" nothing_on_path
check "Remove keeps the configuration" test -s "$config"
check "Remove says so" said "$(dirname "$config")"
run "Remove again, from the checkout" "$src" ./Remove
check "no line and no subtree after a second Remove" gone
add_python_line
run "Upgrade after Remove" "$pmda" ./Upgrade
check "an agent that took our place after Remove is left alone" lines '^bcc[[:space:]]' "$PCP_PMCDCONF_PATH" 1

sed -i '/^prefix = other\.$/d' "$config"
if ! $was_running; then
	service stop >/dev/null 2>&1
	run "Install after Remove, while pmcd is down" "$pmda" ./Install
	upgrades_done
else
	run "Install after Remove" "$pmda" ./Install
fi
check "one line and one subtree after Remove and Install" registered_once
check "the metrics answer after Remove and Install" answers
check "the files for PCP's programs are back" placed

if [ "$failed" -eq 0 ]; then echo "all installation checks passed"; else echo "$failed installation checks failed"; fi
[ "$failed" -eq 0 ]
