#!/bin/bash
# Runs every command of README.md, docs/*.md, consumers/README.md and the man page as it stands there, on a machine on which the README's own
# `sudo ./Install` was run, and compares the samples of output in the README with what is printed. A command is a line of a block marked
# `sh`, an indented example of the man page, or words in backquotes that begin with a program of PCP's or ours and go on.
# The machine is this one with its own processes, network and writable layer over /etc, /usr and /var: nothing outside changes. Needs root.
set -u
shopt -s extglob
src=$(cd "$(dirname "$0")/.." && pwd) || exit 1
prog=tests/commands.sh
# Commands that cannot run here, with the reason. One that stands nowhere any more is an error.
# shellcheck disable=SC2016 # they are shown as they stand
cannot_run='sudo ./tests/run              # ten minutes on two processors	it is what runs this
sudo ./tests/run --all        # every test there is, in an hour	it is what runs this
./Remove	it comes last, with sudo
sudo apt install ./pcp-pmda-corebcc_*.deb ./corebcc-clients_*.deb	tests/packages does
sudo dnf install ./pcp-pmda-corebcc-*.rpm ./corebcc-clients-*.rpm	tests/packages does, by rpm
packaging/deb DIRECTORY	tests/packages does
sudo systemctl enable --now pmproxy	needs systemd; this script starts pmproxy
target/debug/pmdacorebcc show bcc.proc.signals     # until Ctrl-C	tests/new_module.rs builds the module and runs it
pmchart -c Bcc.Overview	it opens a window; tests/pmcd/shipped.rs has it draw
pminfo -f bcc.proc.signals	tests/new_module.rs builds the module and runs it
UPDATE=1 cargo test --locked --test files     # rewrites corebcc.conf, the man page and docs/modules.md	it writes to the sources; tests/run runs the test itself
cargo test --locked --test objects            # the object agrees with the declaration	tests/run runs it
pmstore bcc.agent.control reload	the configuration here has errors; tests/process/changes.rs runs it
readelf -n PROGRAM | awk '\''/Name:/ { print $2 }'\'' | sort -u	PROGRAM stands for a file
sudo benches/compare	it takes eight minutes and pmdabpf
sudo benches/events --only costs	it takes minutes and a JVM
sudo benches/events --only callers	it takes minutes and a release build
sudo benches/events --only switches	it takes minutes and a release build
sudo benches/programs	it takes minutes and a release build
sudo benches/beside agents	it takes a virtual machine
sudo benches/beside metrics	it takes a virtual machine
sudo benches/waits	it takes minutes'
# These come last, since there is nothing to ask afterwards.
last='sudo ./Remove'
# What must be in the output; `nothing` for commands that need not print anything.
# shellcheck disable=SC2016
expected='echo '\''some_inst bcc.agent.module.up == 0 -> print "down:" " %i";'\'' | pmie -t 10	down: .*tracepoint_hits.* usdt_hits|down: .*usdt_hits.* tracepoint_hits
pminfo -f bcc.agent.configuration.status	\[tracepoint_hits\] has no option `tracepoints`
pminfo -f bcc.agent.module.status	"tracepoint_hits"\] value ".*\[tracepoint_hits\] has no option
sudo pmdacorebcc --check	\[tracepoint_hits\] has no option `tracepoints`
echo '\''some_inst match_inst "^[0-9]{4,}-" (1000000 * bcc.runq.latency) > 1 -> print " %v waits/s of %i us";'\'' | pmie -t 2	[0-9] waits/s of [0-9]+-[0-9]+ us
echo '\''sum_inst (1000000 * bcc.disk.all.latency) > 1 -> print "%v requests/s";'\'' | pmie -t 2	[0-9] requests/s
echo '\''some_inst (bcc.disk.dev.read.total.p99 > 20 millisec) -> print " %i: p99 of reads %v s";'\'' | pmie -t 2	nothing
echo '\''some_inst match_inst "^vda\$" (bcc.disk.dev.read.total.p99 > 20 millisec) -> print " %i: reads of one disk %v s";'\'' | pmie -t 2	nothing
echo '\''some_inst (bcc.proc.offcpu.lock.time > 0.5) -> print " %i waits for locks: %v s/s";'\'' | pmie -t 2	nothing
echo '\''bcc.net.tcp.connects.refused.count > 10 -> print "%v connections refused each second";'\'' | pmie -t 2	nothing
echo '\''bcc.net.dns.timeouts.count > 1 -> print "%v questions without an answer each second";'\'' | pmie -t 2	nothing
echo '\''bcc.proc.logins.all.count > 0 -> print "somebody logs in";'\'' | pmie -t 2	nothing
echo '\''some_inst match_inst "^root\$" (bcc.proc.logins.tty.count > 0) -> print " %i has a new shell";'\'' | pmie -t 2	nothing
echo '\''some_inst bcc.agent.lost.events > 0 -> print " %v events/s lost: %i";'\'' | pmie -t 2	nothing
pmval -r -t 1 -s 5 -i 64-127 bcc.runq.latency	^ +[0-9]+ $
pmrep -a histograms -r -t 1 -i 64-127,128-255 bcc.runq.latency	^ +[0-9]+ +[0-9]+$
sudo sed -i '\''s/^modules = .*/&,exectop/'\'' /etc/pcp/corebcc/corebcc.conf	nothing
pmlogger -c histograms.config -T 5sec histograms	nothing
sudo pmieconf modify corebcc.disk_read_latency threshold 50	nothing
sudo pmieconf enable corebcc.login	nothing
sudo pmieconf modify global user_command "logger -p daemon.alert -- \$rule\$^ \$action_expand\$"	nothing
sudo pmieconf modify global user_action yes	nothing
sudo pmieconf modify global syslog_action no	nothing
sed '\''s/valkey/redis/g; s/Valkey/Redis/g'\'' consumers/grafana/valkey/overview.json > overview.json	nothing
pmieconf -f rules.pmie disable all	nothing
pmieconf -f rules.pmie enable corebcc.disk_read_latency	nothing
pmie -c rules.pmie -T 3sec	nothing
sudo pmieconf modify global hosts "localhost"	nothing
pmlogger -c latency.config -T 5sec latency	nothing
pminfo -fT bcc.proc.exec.count	inst \[[0-9]+ or ".*"\] value [1-9]
curl -s '\''http://localhost:44322/metrics?names=bcc.disk.all.latency,bcc.runq.latency,bcc.agent.module.up,bcc.agent.lost.events'\''	bcc_agent_module_up\{
sudo bpf-names on     # off takes them away again	.*
clang -g -O2 -mcpu=v2 -target bpf -I/usr/include/$(uname -m)-linux-gnu -c examples/calls.bpf.c -o examples/calls.bpf.o	nothing
sudo install -d -m 755 /etc/pcp/corebcc/programs.d	nothing
sudo install -m 644 examples/calls.yaml examples/calls.bpf.o /etc/pcp/corebcc/programs.d	nothing
pminfo -f bcc.user.calls	inst \[[0-9]+ or ".*::.*"\] value [1-9]'

skip() { echo "skipped: $*"; exit 77; }

if [ "${1:-}" != --inside ]; then
	[ "$(id -u)" -eq 0 ] || skip "needs root"
	[ -r "${PCP_DIR:-}/etc/pcp.env" ] || skip "PCP is not installed"
	unshare --mount --net --pid --fork --mount-proc true 2>/dev/null || skip "name spaces of mounts, networks and processes"
	# shellcheck source=scripts/prerequisites.sh
	. "$src/scripts/prerequisites.sh"
	mapfile -t built < <("$src/tests/build" process)
	binary=${built[0]:-}
	[ -x "$binary" ] || { echo "FAILED: the program cannot be built"; exit 1; }
	scratch=$(mktemp -d) || exit 1
	trap 'rmdir "$scratch"' EXIT
	unshare --mount --net --pid --fork --mount-proc --kill-child "$0" --inside "$scratch" "$binary"
	exit $?
fi

scratch=$2 binary=$3 out=$2/out
mount -t tmpfs scratch "$scratch" || skip "tmpfs"
for directory in etc usr var; do
	mkdir -p "$scratch/$directory/upper" "$scratch/$directory/work"
	mount -t overlay overlay -o "lowerdir=/$directory,upperdir=$scratch/$directory/upper,workdir=$scratch/$directory/work" "/$directory" ||
		skip "overlayfs"
done
mount -t tmpfs run /run && mkdir -p /run/pcp
: >"$scratch/failures"
ip link set lo up
# In a file, since the table of executed programs, which is shown as well, has their arguments.
printf '%s\n' 'unknown metric' 'not found' 'syntax error' ^usage unrecognized 'no such file' 'try again' >"$scratch/errors"

# A checkout after its build: what scripts/release packs, and the program where cargo leaves it.
checkout=$scratch/checkout
mkdir -p "$checkout/target/release" "$scratch/bin"
"$src/scripts/stage" release "$checkout" "$binary" || exit 1
ln -s ../../pmdacorebcc "$checkout/target/release/"
cd "$checkout" || exit 1

# Programs that are not there are stood in for: sudo changes the path, as the real one does, and flamegraph.pl wants lines of its format.
if ! command -v sudo >/dev/null; then
	printf '#!/bin/sh\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin exec "$@"\n' >"$scratch/bin/sudo"
fi
if ! command -v flamegraph.pl >/dev/null; then
	# shellcheck disable=SC2016 # awk's fields
	printf '#!/usr/bin/awk -f\n!/[^;]+ [0-9]+$/ { print "not a folded stack: " $0 >"/dev/stderr"; bad = 1 } { n++ } END { print "<svg/>"; exit bad || !n }\n' >"$scratch/bin/flamegraph.pl"
fi
chmod 755 "$scratch"/bin/* 2>/dev/null
# The headers of libbpf-dev, as the build has them.
for include in "${binary%/*}"/build/libbpf-sys-*/out/include; do export CPATH=$include; done
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$scratch/bin

# commands FILE: its commands, one a line; the man page has lines of pmcd.conf too
commands() {
	case $1 in
	*.1) awk '/^\.RS/ { on = 1; next } /^\.RE/ { on = 0 } on && !/^(\.|\[|allow |disallow )/ { gsub(/\\-/, "-"); gsub(/\\\(aq/, "\047"); gsub(/\\\(ha/, "^"); gsub(/\\\(ti/, "~"); gsub(/\\e/, "\\"); print }' "$1" ;;
	*) awk '
		/^```/ { block = block ? "" : ($0 == "```sh" ? "sh" : "other"); next }
		block == "sh" && !/^ *(#|$)/ { print; next }
		block { if (/^\$ /) print substr($0, 3); next }
		{
			parts = split($0, part, "`")
			for (i = 2; i < parts; i += 2)
				if (part[i] ~ /^(sudo [^ ]|\.\/[A-Z]|(pm[a-z0-9]+|pcp|bpf-names) [^ |])/) print part[i]
		}' "$1" ;;
	esac
}
field() { wanted=$2 awk -F '\t' '$1 == ENVIRON["wanted"] { print $2; found = 1 } END { exit !found }' <<<"$1"; }
fail() {
	echo "FAILED: $*"
	sed 's/^/    /' "$out"
	echo >>"$scratch/failures"
}
# run FILE COMMAND: it succeeds, or is one of those that go on until they are interrupted, and says something that is no error
run() {
	local file=$1 command=$2 status wanted limit=300 interrupted=0
	case $command in pmval* | pmrep* | *pmie* | 'pcp atop' | 'pcp biolatency' | 'pcp runqlat') limit=6 interrupted=124 ;; esac
	# An agent that was restarted has no values while it loads, and says so: to try again.
	for _ in {1..20}; do
		# What runs in the background ignores this signal, unless told otherwise.
		timeout --signal=INT --kill-after=5 "$limit" env --default-signal=INT bash -c "$command" </dev/null >"$out" 2>&1
		status=$?
		case $command in pminfo*) grep -qi 'try again' "$out" || break ;; *) break ;; esac
		sleep 1
	done
	wanted=$(field "$expected" "$command" || echo .)
	case $command in *'>'*) [ -s "${command##*>*( )}" ] && echo "wrote ${command##*>*( )}" >>"$out" ;; *--check) [ $status -ne 1 ] || status=0 ;; esac
	if [ $status -ne 0 ] && [ $status -ne $interrupted ]; then
		fail "$file: $command: status $status"
	elif grep -v ' value "' "$out" | grep -qif "$scratch/errors"; then
		fail "$file: $command: an error"
	elif [ "$wanted" != nothing ] && ! grep -qE "$wanted" "$out"; then
		fail "$file: $command: no \`$wanted\` in its output"
	else
		echo "ok: $file: $command"
	fi
}
# shape: lines without their numbers, bars and blanks
shape() { sed -E 's/[0-9]+/N/g; s/\|[* ]*\|/||/; s/[[:space:]]+/ /g; s/ $//' | sort -u; }
# samples FILE: number, command and lines of each sample of output: behind a `$`, or in the block after a block of one command
samples() {
	awk '
		/^```sh$/ { n = 0; kind = "sh"; next }
		/^```text$/ { kind = "text"; if (shown != "") { sample++ } ; next }
		/^```$/ { if (kind == "text") command = ""; if (kind == "sh") command = n == 1 ? line : ""; shown = command; kind = ""; next }
		kind == "sh" { n++; line = $0; next }
		kind == "text" && /^\$ / { sample++; shown = substr($0, 3); next }
		kind == "text" && shown != "" && NF { print sample "\t" shown "\t" $0; next }
		kind == "" && NF { shown = "" }' "$1"
}

files=(README.md docs/*.md consumers/README.md man/*.[15])
for file in "${files[@]}"; do commands "$file" | sed "s|^|$file	|"; done | awk -F '\t' '!seen[$2]++' >"$scratch/commands"
while IFS=$'\t' read -r command _; do
	if ! cut -f 2- "$scratch/commands" | grep -qxF -e "$command"; then
		: >"$scratch/out"
		fail "$command stands nowhere, but in this script"
	fi
done <<<"$cannot_run
$expected"

set +u
# shellcheck disable=SC1091 # belongs to PCP
. "${PCP_DIR:-}/etc/pcp.env"
set -u
run README.md "sudo ./Install"
for link in "$PCP_BIN_DIR/pmdacorebcc" "$PCP_BIN_DIR/bpf-names" "$PCP_MAN_DIR/man1/pmdacorebcc.1" "$PCP_MAN_DIR/man5/corebcc.conf.5" "$PCP_BINADM_DIR/pcp-corebcc"; do
	[ -e "$link" ] || { : >"$scratch/out"; fail "$link is not there after Install"; }
done
# The samples show a disk that is written to, the rules tasks that wait for a CPU.
for _ in $(seq "$(nproc)") again; do nice -n 19 sh -c 'while :; do :; done' & done
written=${binary%/debug/*}/commands.$$
(while sleep 0.1; do dd if=/dev/zero of="$written" bs=4k count=1 oflag=dsync; done) >/dev/null 2>&1 &
disk=$!
while IFS=$'\t' read -r number command; do
	timeout 60 bash -c "$command" </dev/null >"$scratch/real" 2>&1
	samples README.md | awk -F '\t' -v n="$number" '$1 == n { print $3 }' | shape >"$scratch/sample"
	shape <"$scratch/real" >"$scratch/real.shape"
	if comm -23 "$scratch/sample" "$scratch/real.shape" | grep . >"$scratch/out"; then
		cat "$scratch/real" >>"$scratch/out"
		fail "README.md: $command prints no such lines"
	else
		echo "ok: README.md: the sample of $command"
	fi
done < <(samples README.md | cut -f 1,2 | sort -u)

# The texts speak of modules besides the default ones, of counted runs, and of modules that fail: two, without their lists of probes.
config=$PCP_SYSCONF_DIR/corebcc/corebcc.conf
sed -i 's/^modules = .*/modules = biolatency,runqlat,netproc,profile,offcpu,logins,tcpconnect,dns,tracepoint_hits,usdt_hits/; s/^#stacks = .*/stacks = True/; s/^bpf_stats = .*/bpf_stats = True\nload_later = True/' "$config"
run "(configured)" "cd $PCP_PMDAS_DIR/corebcc && ./Install"
grep -qF "[tracepoint_hits] has no option \`tracepoints\`" "$scratch/out" || fail "Install does not show what is wrong with the configuration"

"$PCP_BINADM_DIR/pmproxy" -F -l "$scratch/pmproxy.log" &
# kind COMMAND: of what changes nothing and takes seconds, by whom it is answered; else `alone`
kind() {
	case $1 in
	'sudo pmdacorebcc show '*'>'*) echo alone ;;
	'sudo pmdacorebcc show '*) echo agents ;;
	pmval* | pmrep* | *'| pmie '* | 'pcp atop') echo pmcd ;;
	*) echo alone ;;
	esac
}
# Neighbours of a kind run beside each other, up to four.
beside=() before=alone
while IFS=$'\t' read -r file command; do
	case $command in "sudo ./Install" | "$last") continue ;; esac
	if reason=$(field "$cannot_run" "$command"); then echo "not run: $file: $command: $reason"; continue; fi
	kind=$(kind "$command")
	if [ ${#beside[@]} -eq 4 ] || [ "$kind" != "$before" ]; then
		[ ${#beside[@]} -eq 0 ] || wait "${beside[@]}"
		beside=()
	fi
	before=$kind
	if [ "$kind" = alone ]; then run "$file" "$command"; continue; fi
	(out=$scratch/out.$BASHPID run "$file" "$command") &
	beside+=($!)
done <"$scratch/commands"
[ ${#beside[@]} -eq 0 ] || wait "${beside[@]}"
run README.md "$last"
kill "$disk"
wait "$disk" 2>/dev/null
rm -f "$written"
for link in "$PCP_BIN_DIR/pmdacorebcc" "$PCP_BIN_DIR/bpf-names" "$PCP_MAN_DIR/man1/pmdacorebcc.1" "$PCP_MAN_DIR/man5/corebcc.conf.5" "$PCP_BINADM_DIR/pcp-corebcc"; do
	[ ! -L "$link" ] || { : >"$scratch/out"; fail "$link is still there after Remove"; }
done

failed=$(wc -l <"$scratch/failures")
echo "$prog: $failed failed"
[ "$failed" -eq 0 ]
