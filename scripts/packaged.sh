# shellcheck shell=sh
# What a package does once its files are there; its scripts read this, of the deb and of the rpm alike.
# Nothing ends with an error: a machine on which the agent cannot work has a package that is installed, and a sentence about it.

# restart SERVICE...: those of them that run
restart() {
	if [ ! -d /run/systemd/system ]; then
		for name; do
			if ! pgrep --ns $$ --nslist net -x "$name"; then
				continue
			elif command -v invoke-rc.d; then
				invoke-rc.d "$name" restart # which asks the site's policy
			else
				"/etc/init.d/$name" restart
			fi
		done
	elif command -v deb-systemd-invoke; then
		deb-systemd-invoke try-restart "$@"
	else
		systemctl try-restart "$@"
	fi >/dev/null 2>&1 </dev/null || :
}

# is_at_least VERSION WANTED
is_at_least() { [ "$(printf '%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# package_configured CLIENTS-FOLLOW: registers the agent where pmcd runs, or has pmcd's start script do it. The command is true where
# corebcc-clients is still to be configured, which restarts the loggers then.
package_configured() {
	# shellcheck disable=SC2034 # pcp.env reads it
	PCP_DIR=''
	# shellcheck disable=SC1091 # belongs to PCP
	. /etc/pcp.env
	cd "$PCP_PMDAS_DIR/corebcc" || return
	# shellcheck disable=SC2034 # registration.sh reads it
	NAMESPACE=$PCP_VAR_DIR/pmns/root
	# shellcheck source=scripts/registration.sh
	. ./registration.sh
	# An administrator has run Remove.
	[ ! -e .removed ] || return 0

	if [ ! -e "$config" ]; then
		adopt_config "$(foreign_agents)"
		# Clients of these releases look for pmdabpf's names.
		if is_at_least "$PCP_VERSION" 6.2 && ! bpf_agent; then set_bpf_names on 2>/dev/null; fi
	fi
	if ! pmcd_answers; then
		# pmcd's start script runs Install then.
		is_current >/dev/null 2>&1 || : >.NeedInstall
		return 0
	fi
	if is_current; then
		renew
		wait_ready || echo "corebcc: the agent does not answer; read /var/log/pcp/pmcd/corebcc.log" >&2
		return 0
	fi
	rm -f .NeedInstall*
	if ! ./Install </dev/null; then
		echo "corebcc: registration failed (see above); after that is put right, run: cd $PWD && sudo ./Install" >&2
		return 0
	fi
	# Their configuration is written as they start, from what the agent has then.
	"$1" || restart pmlogger pmie
	echo "corebcc: look at it with: pminfo -f bcc.disk.all.latency"
}

# package_goes: takes the agent out, and what Install and Remove have made in its directory
package_goes() {
	pmda=/var/lib/pcp/pmdas/corebcc
	(cd "$pmda" && ./Remove </dev/null) || echo "corebcc: Remove failed; see above" >&2
	rm -f "$pmda"/root "$pmda"/pmns.* "$pmda"/.removed "$pmda"/.NeedInstall*
	find "$pmda" -maxdepth 1 -type l -lname '/etc/pcp/corebcc/*' -delete
}
