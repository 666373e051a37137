# shellcheck shell=sh disable=SC2154 # PCP_* come from pcp.env, NAMESPACE and LOGDIR from pmdaproc.sh or the caller
# Sourced by Install, Remove and Upgrade in the PMDA directory: pmcd.conf lines, name space roots, the old agent's configuration.
#
# Why the agent is called corebcc while its metrics begin with bcc: from PCP 7.1.1 on, the Upgrade script of pmdabpf deletes at every
# pmcd start whatever line of pmcd.conf begins with `bcc`, and when there is one also the file $PCP_VAR_DIR/pmns/bcc. Our line does
# not begin so. The file pmns/bcc is only pmnsadd's input and never read again: names are served from pmns/root, into which it was
# merged, and Rebuild keeps what root holds. Should root itself be lost, our Upgrade adds the entry again; it runs after
# pmdabpf's, because the start script goes through the directories in alphabetical order.

# agent lines in pmcd.conf that stand in our way: another agent for domain 149, or one named bcc
foreign_agents() {
	[ -f "$PCP_PMCDCONF_PATH" ] || return 0
	awk '/^[ \t]*\[[ \t]*access/ { exit } /^[ \t]*#/ { next } $1 != "corebcc" && ($1 == "bcc" || $2 == 149)' "$PCP_PMCDCONF_PATH"
}

registered() { grep -q '^corebcc[[:space:]]' "$PCP_PMCDCONF_PATH"; }

# replace FILE COMMAND...: the file gets what the command prints, and keeps its owner and mode. Readers meet the old file or the new
# one, never a part; where the disk is full, or the command fails, the old one stays.
replace() (
	old=$(readlink -f "$1") && new=$(mktemp "$old.XXXXXX") || exit 1
	trap 'rm -f "$new"' EXIT
	shift
	# Written by the shell, which notices a full disk: busybox's awk does not.
	text=$("$@" && echo .) && cp -a "$old" "$new" && printf %s "${text%.}" >"$new" || exit 1
	cmp -s "$new" "$old" || mv -f "$new" "$old"
)

# our line of pmcd.conf
our_line() { printf 'corebcc\t149\tpipe\tbinary\t\t%s/pmdacorebcc -d 149\n' "$(pwd)"; }

# pmcd.conf with our line instead of the first foreign one, the others dropped.
with_our_line() {
	have_ours=0
	if registered; then have_ours=1; fi
	awk -v have="$have_ours" -v line="$(our_line)" '
		/^[ \t]*\[[ \t]*access/ { access = 1 }
		!access && !/^[ \t]*#/ && $1 != "corebcc" && ($1 == "bcc" || $2 == 149) { if (!have++) print line; next }
		{ print }' "$PCP_PMCDCONF_PATH"
}

register() { replace "$PCP_PMCDCONF_PATH" with_our_line; }

pmcd_answers() { pminfo -v pmcd.version >/dev/null 2>&1; }

hup_pmcd() {
	if pmcd_answers; then pmsignal -a -s HUP pmcd >/dev/null 2>&1; fi
}

# whether Install has nothing to change: pmcd.conf has the line that it writes, and the name space all roots
is_current() {
	[ -z "$(foreign_agents)" ] && [ -f "$NAMESPACE" ] && awk -v program="$(pwd)/pmdacorebcc" '
		/^[ \t]*\[[ \t]*access/ { exit }
		$1 == "corebcc" { exit !(found = $2 == 149 && $3 == "pipe" && $4 == "binary" && $5 == program) }
		END { exit !found }' "$PCP_PMCDCONF_PATH" || return 1
	choose_roots
	for name in $pmns_name; do root_line "$name" >/dev/null || return 1; done
}

# the agent, and the helpers that it has forked, as pmcd started them
agents() { pgrep --ns $$ --nslist net -f "^$(pwd)/pmdacorebcc -d "; }

# Ends the agent and has pmcd start it again, which a new program needs. Its line and the names stay, so that clients meanwhile are told
# to try again: by Install, names are gone for three seconds, and pmlogger ends at a name that is gone.
renew() {
	# shellcheck disable=SC2046 # numbers
	! agents >/dev/null || kill $(agents)
	tries=0
	while [ $tries -lt 40 ] && agents >/dev/null; do
		"$PCP_BINADM_DIR/pmsleep" 0.05
		tries=$((tries + 1))
	done
	pminfo -f bcc.agent.version >/dev/null 2>&1 # pmcd notices by asking, and restarts only what it knows to have ended
	hup_pmcd
}

# root_line NAME: what the name space holds for a top-level name; status 1 when nothing
root_line() {
	awk -v name="$1" '$1 == "root" { top = 1; next } $1 == "}" { top = 0 } top && $1 == name { print $2; found = 1 } END { exit !found }' "$NAMESPACE"
}

# every top-level name that is ours (or was the Python agent's), and bcc in any case
installed_roots() {
	[ -f "$NAMESPACE" ] || { echo bcc; return; }
	awk '$1 == "root" { top = 1; next } $1 == "}" { top = 0 } top && $2 == "149:*:*" && $1 != "bcc" { printf "%s ", $1 } END { print "bcc" }' "$NAMESPACE"
}

# Sets pmns_name: bcc, the first component of each other `prefix` that the configuration names, and bpf where it asks for pmdabpf's names.
# A name that belongs to another agent is left alone: pmdaInstall would delete its subtree.
choose_roots() {
	pmns_name=bcc
	[ -f "$config" ] || return 0
	# shellcheck disable=SC2013 # names are words
	for name in $({
		sed -n 's/^[Pp][Rr][Ee][Ff][Ii][Xx][[:space:]]*[=:][[:space:]]*\([A-Za-z][A-Za-z0-9_]*\)\..*/\1/p' "$config"
		! wants_bpf_names || echo bpf
	} | sort -u); do
		[ "$name" != bcc ] || continue
		if { owner=$(root_line "$name") && [ "$owner" != '149:*:*' ]; } || { [ "$name" = bpf ] && bpf_agent; }; then
			echo "Warning: names that begin with $name. belong to another agent; those that $config asks for will not be visible" >&2
			continue
		fi
		pmns_name="$pmns_name $name"
	done
	# With several names pmdaInstall reads a file pmns.NAME for each.
	[ "$pmns_name" = bcc ] || for name in $pmns_name; do printf '%s\tBCC:*:*\n' "$name" >"pmns.$name"; done
}

# pmdaInstall checks the file `root` when there is one; the one it would make around pmns does not know the symbol BCC.
write_root() { printf '#include "domain.h"\nroot {\n#include "pmns"\n}\n' >root; }

# in_names COMMAND...: in the directory of the name space, which is locked meanwhile
in_names() {
	(
		cd "$(dirname "$NAMESPACE")" || exit 1
		"$PCP_SHARE_DIR/lib/lockpmns" root
		"$@"
		ended=$?
		"$PCP_SHARE_DIR/lib/unlockpmns" root
		exit $ended
	)
}

# add_root NAME: merges `NAME 149:*:*` into the name space
add_root() {
	printf '%s\t149:*:*\n' "$1" >"$(dirname "$NAMESPACE")/$1" && in_names "$PCP_BINADM_DIR/pmnsadd" -n root "$1"
}

# Takes out of the name space what is ours there and was not chosen.
drop_other_roots() {
	for name in $(installed_roots); do
		case " $pmns_name " in
		*" $name "*) ;;
		*) in_names "$PCP_BINADM_DIR/pmnsdel" -n root "$name" && rm -f "$(dirname "$NAMESPACE")/$name" ;;
		esac
	done
}

config=$PCP_SYSCONF_DIR/corebcc/corebcc.conf

# edited FILE (no symbolic link): not as its package delivered it, or no package's file
edited() {
	file=$1
	if command -v dpkg-query >/dev/null 2>&1; then
		sum=$(dpkg-query -W -f='${Conffiles}\n' pcp 'pcp-pmda-bcc' 2>/dev/null | awk -v file="$file" '$1 == file { print $2 }')
		[ "$sum" != "$(md5sum <"$file" | cut -d' ' -f1)" ]
	else
		# rpm -V prints one line per file that was changed
		! rpm -qf "$file" >/dev/null 2>&1 || rpm -Vf "$file" 2>/dev/null | grep -q "^..5.* $file\$"
	fi
}

# adopt_config OLD-LINES: when we have no configuration, take the old agent's, with the lists of probes it names, or else the default.
# PCP's own package brings an unused bcc.conf to every Debian machine; so one counts only if its agent was registered or it was edited.
adopt_config() {
	if [ ! -e "$config" ]; then
		mkdir -p "$(dirname "$config")"
		for source in "$PCP_PMDAS_DIR/bcc/bcc.conf" "$PCP_SYSCONF_DIR/bcc/bcc.conf"; do
			[ -f "$source" ] || continue
			source=$(readlink -f "$source")
			[ -n "$1" ] || edited "$source" || continue
			if ! cp -L "$source" "$config"; then
				echo "Warning: cannot copy $source to $config; going on without" >&2
				break
			fi
			echo "Adopting the old agent's configuration: $source copied to $config (the original is untouched)"
			# values that name a file beside it, for instance tracepoints = bcc-tracepoint.conf
			for list in $(sed -n 's/^[A-Za-z_]*[[:space:]]*[=:]//p' "$config" | tr -s ',[:space:]' '[\n*]' | sort -u); do
				case $list in */* | bcc.conf) continue ;; esac
				beside=$(dirname "$source")/$list
				if [ ! -f "$beside" ] || [ -e "$(dirname "$config")/$list" ]; then continue; fi
				cp -L "$beside" "$(dirname "$config")/$list" && echo "  and its list of probes: $beside"
			done
			break
		done
		if [ ! -e "$config" ] && [ -f corebcc.conf.default ]; then
			cp corebcc.conf.default "$config"
			echo "Default configuration: $config"
		fi
	else
		echo "Keeping the configuration that is there: $config"
	fi
	# where administrators of other PMDAs look for it
	for file in "$(dirname "$config")"/*.conf; do
		[ ! -f "$file" ] || ln -sf "$file" .
	done
}

# whether the configuration asks for pmdabpf's names
wants_bpf_names() {
	[ -f "$config" ] && grep -Eiq '^bpf_names[[:space:]]*[=:][[:space:]]*(1|yes|true|on)[[:space:]]*$' "$config"
}

# modules that pmdabpf has, too, and the line that begins a section of one
of_pmdabpf='bashreadline|biolatency|netproc|execsnoop|exitsnoop|fsslower|mountsnoop|oomkill|opensnoop|statsnoop|tcpconnect|vfsstat'
as_pmdabpf="^[Mm][Oo][Dd][Uu][Ll][Ee][[:space:]]*[=:][[:space:]]*($of_pmdabpf)[[:space:]]*\$"
# set_bpf_names on|off: a line of its own in the configuration's sections of these modules, or none
set_bpf_names() {
	if [ ! -f "$config" ] || ! grep -Eq "$as_pmdabpf" "$config"; then
		[ "$1" = off ] && return
		echo "no section with module = $(echo "$of_pmdabpf" | sed 's/|/ or /g') in $config; add one, as in $(pwd)/corebcc.conf.default" >&2
		return 1
	fi
	replace "$config" with_bpf_names "$1"
}
# with_bpf_names on|off: the configuration, with these lines or without
with_bpf_names() {
	awk -v on="$1" -v as_pmdabpf="$as_pmdabpf" '
		tolower($0) ~ /^bpf_names[ \t]*[=:]/ { next }
		{ print }
		on == "on" && $0 ~ as_pmdabpf { print "bpf_names = True" }' "$config"
}

# whether pmdabpf is registered
bpf_agent() { [ -f "$PCP_PMCDCONF_PATH" ] && awk '/^[ \t]*\[[ \t]*access/ { exit } $1 == "bpf" { found = 1 } END { exit !found }' "$PCP_PMCDCONF_PATH"; }

# The files of `consumers` that belong below $PCP_SYSCONF_DIR, by their names there.
consumer_files() { (cd consumers 2>/dev/null && find pmrep dstat pmlogconf pmlogrewrite pmieconf pmchart htop -type f); }

# whether a package has put the agent here, which then owns its files; scripts/stage leaves this mark
from_package() { [ -f .packaged ]; }

# PCP's programs read some of these directories through links below $PCP_VAR_DIR/config.
place_consumers() {
	! from_package || return 0
	for name in $(consumer_files); do
		case $name in
		# pmlogrewrite takes two rules for one metric as an error
		*/corebcc_netproc.conf) ! grep -qs '^metric bcc\.proc\.io\.net\.perpid' "$PCP_VAR_DIR"/config/pmlogrewrite/bcc_*.conf || continue ;;
		esac
		{ mkdir -p "$(dirname "$PCP_SYSCONF_DIR/$name")" && cp "consumers/$name" "$PCP_SYSCONF_DIR/$name"; } ||
			{ echo "Warning: cannot write $PCP_SYSCONF_DIR/$name; going on without" >&2; continue; }
		case $name in
		pmlogconf/* | pmlogrewrite/* | pmieconf/* | pmchart/*)
			link=$PCP_VAR_DIR/config/$name
			mkdir -p "$(dirname "$link")"
			# where one directory is a link to the other it is there already
			if [ -L "$link" ] || [ ! -e "$link" ]; then ln -sf "$PCP_SYSCONF_DIR/$name" "$link"; fi
			;;
		esac
	done
}

take_consumers() {
	! from_package || return 0
	for name in $(consumer_files); do
		rm -f "$PCP_VAR_DIR/config/$name" "$PCP_SYSCONF_DIR/$name"
	done
	# pmchart's are not there without pmchart
	for name in pmlogconf/corebcc pmieconf/corebcc pmchart; do
		rmdir "$PCP_VAR_DIR/config/$name" "$PCP_SYSCONF_DIR/$name" 2>/dev/null || :
	done
}

# What belongs on the path, or where shells look for completions: a file here, and its place there.
commands() {
	share=${PCP_SHARE_DIR%/*}
	printf '%s\n' "pmdacorebcc ${PCP_BIN_DIR:-/usr/bin}/pmdacorebcc" "bpf-names ${PCP_BIN_DIR:-/usr/bin}/bpf-names" \
		"pmdacorebcc.1 $PCP_MAN_DIR/man1/pmdacorebcc.1" "corebcc.conf.5 $PCP_MAN_DIR/man5/corebcc.conf.5" \
		"bpf-names.8 $PCP_MAN_DIR/man8/bpf-names.8" \
		"pcp-corebcc.1 $PCP_MAN_DIR/man1/pcp-corebcc.1" \
		"consumers/pcp/pcp-corebcc $PCP_BINADM_DIR/pcp-corebcc" "consumers/pcp/pcp-corebcc $PCP_BINADM_DIR/pcp-biolatency" \
		"consumers/pcp/pcp-corebcc $PCP_BINADM_DIR/pcp-runqlat" \
		"completions/bash $share/bash-completion/completions/pmdacorebcc" \
		"completions/zsh ${share%/*}/local/share/zsh/site-functions/_pmdacorebcc" \
		"completions/fish $share/fish/vendor_completions.d/pmdacorebcc.fish"
}

# Writes the completions of this program for the shells that are here.
write_completions() {
	! from_package || return 0
	rm -rf completions && mkdir completions || return 0
	for shell in bash zsh fish; do
		command -v "$shell" >/dev/null 2>&1 || continue
		./pmdacorebcc completions "$shell" >"completions/$shell" || rm -f "completions/$shell"
	done
}

# packaged FILE: whether it came with a package, which then takes care of it
packaged() { if command -v dpkg-query; then dpkg-query -S "$1"; else rpm -qf "$1"; fi >/dev/null 2>&1; } # on Debian rpm would make a database

# our_link NAME LINK
our_link() { [ -L "$2" ] && [ "$(readlink "$2")" = "$(pwd)/$1" ]; }

# Links to the program, bpf-names, the man pages and the completions. What somebody else has put there stays.
place_commands() {
	! from_package || return 0
	commands | while read -r name link; do
		if [ ! -e "$name" ] || our_link "$name" "$link" || packaged "$link"; then continue; fi
		# earlier releases copied the man page
		case $link in *.1) [ ! -f "$link" ] || rm -f "$link" ;; esac
		if [ -e "$link" ] || [ -L "$link" ] || ! { mkdir -p "$(dirname "$link")" && ln -s "$(pwd)/$name" "$link"; }; then
			echo "Warning: cannot link $link to $(pwd)/$name; is something else there?" >&2
		fi
	done
}

take_commands() {
	! from_package || return 0
	commands | while read -r name link; do
		if our_link "$name" "$link" && ! packaged "$link"; then rm -f "$link"; fi
	done
}

# Tells what is wrong with the configuration, and what this kernel does not allow.
check_modules() {
	faults=$(./pmdacorebcc --check 2>&1 >/dev/null | sed 's/^/    /')
	[ -n "$faults" ] || return 0
	echo "Install: the agent is registered, with problems (which modules run: pminfo -f bcc.agent.module.status):" >&2
	echo "$faults" >&2
}

# What the logs say since the registration began.
show_logs() {
	for log in "$LOGDIR/corebcc.log" "$LOGDIR/pmcd.log"; do
		# shellcheck disable=SC2154 # pmdaproc.sh makes $tmp
		[ -n "$(find "$log" -newer "$tmp/begin" 2>/dev/null)" ] || continue
		case $log in
		*/corebcc.log) tail -n 5 "$log" ;;
		*) grep corebcc "$log" | tail -n 5 ;;
		esac | sed "s|^|    $log: |"
	done
}

agent_status() { pminfo -f pmcd.agent.status 2>/dev/null | sed -n 's/.*"corebcc"\] value //p'; }

# Waits until there are names below ours: at first pmcd answers for the agent with "try again", and for one that is gone it
# shows the dynamic root itself. Status 1 when pmcd has given the agent up, or after a minute.
wait_ready() {
	tries=0
	while [ $tries -lt 240 ]; do
		# shellcheck disable=SC2086 # names; -n FILE, or nothing
		if PCP_DERIVED_CONFIG='' pminfo ${__ns_opt:-} $pmns_name 2>/dev/null | grep -q '\.'; then return 0; fi
		"$PCP_BINADM_DIR/pmsleep" 0.25
		tries=$((tries + 1))
		if [ $((tries % 8)) -eq 0 ] && [ "$(agent_status)" != 0 ]; then return 1; fi
	done
	return 1
}
