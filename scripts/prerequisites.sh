# shellcheck shell=sh disable=SC2154 # the sourcing script sets prog and src
# Sourced by scripts/install-checkout and the tests' scripts: installs packages, finds or gets a Rust toolchain.
# Needs $prog (for messages) and $src (the checkout). Works with apt on Debian 12; dnf names are untested.

say() { printf '%s\n' "$prog: $*" >&2; }

# die WHAT NEXT: what failed, and what to do about it
die() {
	printf '%s: %s\n%s  next: %s\n' "$prog" "$1" "$prog" "$2" >&2
	exit 1
}

need_root() {
	[ "$(id -u)" -eq 0 ] || { say "must be root: run it with sudo"; exit 1; }
}

# seconds_left: until the end of a run that has one (DEADLINE, in seconds since 1970); a day where none is set
seconds_left() { echo $((${DEADLINE:-$(($(date +%s) + 86400))} - $(date +%s))); }

have() { command -v "$1" >/dev/null 2>&1; }

# at_least HAVE WANT: compares dotted version numbers
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# Debian's name of a package -> Fedora's and RHEL's
dnf_name() {
	case $1 in
	libc6-dev) echo glibc-devel ;;
	pkg-config) echo pkgconf-pkg-config ;;
	libelf-dev) echo elfutils-libelf-devel ;;
	zlib1g-dev) echo zlib-devel ;;
	redis-server) echo redis ;;
	libsasl2-modules) echo cyrus-sasl-plain ;;
	bsdutils) echo util-linux ;;
	busybox-static) echo busybox ;;
	dmsetup) echo device-mapper ;;
	xz-utils) echo xz ;;
	iproute2) echo iproute ;;
	procps) echo procps-ng ;;
	shellcheck) echo ShellCheck ;;
	*) echo "$1" ;;
	esac
}

apt_has() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed'; }

apt_refresh() {
	[ -z "${apt_refreshed:-}" ] || return 0
	apt-get update -q >/dev/null || say "apt-get update failed; going on with the package lists that are there"
	apt_refreshed=yes
}

apt_install() {
	# Where systemd is installed but not running, pcp's postinst calls systemctl and fails; told that it
	# is offline, systemctl skips the start and succeeds.
	[ -d /run/systemd/system ] || export SYSTEMD_OFFLINE=1
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-remove --no-install-recommends "$@" </dev/null >&2
}

# apt_install_each PACKAGE...: one package that conflicts with something must not keep the others away
apt_install_each() {
	refused=
	for package; do apt_install "$package" || refused="$refused $package"; done
	[ -z "$refused" ] || { say "not installed:$refused; apt's reason is above"; return 1; }
}

# install_packages DEBIAN-NAME...: installs those that are missing; status 1 when that failed. What is there stays.
install_packages() {
	if have apt-get && have dpkg-query; then
		missing=
		for package; do apt_has "$package" || missing="$missing $package"; done
		[ -n "$missing" ] || return 0
		say "installing$missing"
		apt_refresh
		# shellcheck disable=SC2086 # a list of package names
		apt_install $missing || apt_install_each $missing
	elif have dnf; then
		say "installing packages with dnf (this path is untested)"
		missing=
		for package; do
			name=$(dnf_name "$package")
			rpm -q "$name" >/dev/null 2>&1 || missing="$missing $name"
		done
		[ -n "$missing" ] || return 0
		# shellcheck disable=SC2086 # a list of package names
		dnf install -y $missing </dev/null >&2
	else
		say "neither apt-get nor dnf is here; expecting that these are installed: $*"
	fi
}

# The home directory of whoever called sudo, if it was somebody else.
caller_home() {
	[ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ] || return 0
	getent passwd "$SUDO_USER" | cut -d: -f6
}

# use_cargo FILE: takes this cargo when it is new enough and has the subcommands in $cargo_needs; exports PATH and the homes
# it belongs to
use_cargo() {
	[ -x "$1" ] || return 1
	home=$(caller_home)
	# rustup's proxies look for their toolchains below $HOME, which is root's.
	case $1 in "${home:-/nowhere}"/*) export RUSTUP_HOME="$home/.rustup" CARGO_HOME="$home/.cargo" ;; esac
	found=$("$1" --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p')
	lacks=
	for subcommand in ${cargo_needs:-}; do
		# Beside it: cargo also runs one from ~/.cargo/bin, and a linter of another version cannot read this compiler's crates.
		tool=$(dirname "$1")/cargo-$subcommand
		if [ ! -x "$tool" ] || ! PATH=$(dirname "$1"):$PATH "$1" "$subcommand" --version >/dev/null 2>&1; then lacks="$lacks $subcommand"; fi
	done
	if [ -n "$found" ] && [ -z "$lacks" ] && at_least "$found" "$rust_wanted"; then
		PATH=$(dirname "$1"):$PATH
		export PATH
		return 0
	fi
	case $1 in "${home:-/nowhere}"/*) unset RUSTUP_HOME CARGO_HOME ;; esac
	[ -z "$found" ] || say "$1 is version $found${lacks:+ without$lacks}; wanted: $rust_wanted or later${cargo_needs:+ with $cargo_needs}"
	return 1
}

find_cargo() {
	home=$(caller_home)
	for candidate in "$(command -v cargo)" "${HOME:-/root}/.cargo/bin/cargo" "${home:-/nowhere}/.cargo/bin/cargo" \
		/root/.cargo/bin/cargo /usr/local/cargo/bin/cargo /usr/local/bin/cargo /usr/bin/cargo /usr/lib/rust-*/bin/cargo; do
		use_cargo "$candidate" && return 0
	done
	return 1
}

# A distribution's cargo, if its version will do. Debian 12 carries a current one as cargo-web.
distribution_cargo() {
	if have apt-get; then
		apt_refresh
		for package in cargo cargo-web; do
			offered=$(apt-cache policy "$package" | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
			# Debian's package "cargo" was numbered 0.66 for Rust 1.65; such a number is too small in any case.
			if [ -z "$offered" ] || ! at_least "$offered" "$rust_wanted"; then continue; fi
			case $package in
			cargo) apt_install cargo rustc && return 0 ;;
			*) apt_install cargo-web rustc-web && return 0 ;;
			esac
		done
		return 1
	fi
	have dnf && dnf install -y cargo rust clippy rustfmt </dev/null >&2
}

# rustup from the distribution (Debian 13, Fedora), else from its own site; into root's home.
rustup_cargo() {
	have rustup || { have apt-get && apt_install rustup; } || { have dnf && dnf install -y rustup </dev/null >&2; } || :
	if have rustup; then
		rustup toolchain install stable --profile minimal -c rustfmt -c clippy >&2 && rustup default stable >&2 && return 0
	elif have rustup-init; then
		rustup-init -y --profile minimal -c rustfmt -c clippy --no-modify-path >&2 && return 0
	fi
	have curl || install_packages curl ca-certificates
	installer=$(mktemp) || return 1
	curl -sSf --proto '=https' --tlsv1.2 -o "$installer" https://static.rust-lang.org/rustup/rustup-init.sh &&
		RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y --profile minimal -c rustfmt -c clippy --no-modify-path >&2
	got=$?
	rm -f "$installer"
	return $got
}

# need_cargo [SUBCOMMAND...]: afterwards cargo is on PATH and new enough, with these subcommands if that can be had. Root's cargo and
# the caller's are looked for, then the distribution's packages (of which only Fedora's have clippy in step), then rustup.
need_cargo() {
	rust_wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' "$src/Cargo.toml")
	cargo_needs=$*
	find_cargo && return 0
	say "no such cargo here; looking for a package"
	{ [ -z "$cargo_needs" ] || ! have apt-get; } && distribution_cargo && find_cargo && return 0
	say "no package has it; trying rustup"
	rustup_cargo && find_cargo && return 0
	if [ -n "$cargo_needs" ]; then
		cargo_needs=
		find_cargo && return 0
		distribution_cargo && find_cargo && return 0
	fi
	die "no Rust toolchain of version $rust_wanted or later could be found or installed" \
		"install one as described at https://rustup.rs (as root or as the user who calls sudo), then run this again"
}

# hand_back DIRECTORY...: what root built in a user's checkout or cargo home belongs to that user. A directory outside the checkout is
# the user's only if it belongs to them already: /usr/local/cargo is the machine's.
hand_back() {
	owner=$(stat -c %u:%g "$src")
	[ "$owner" != 0:0 ] || return 0
	for directory; do
		case $directory in
		"$src"/*) ;;
		*) [ "$(stat -c %u "$directory" 2>/dev/null)" = "${owner%:*}" ] || continue ;;
		esac
		[ -d "$directory" ] && find "$directory" -user root -exec chown -h "$owner" {} +
	done
	return 0
}

# pmcd and pmlogger need to resolve both names; containers made by debootstrap have no such file.
need_hosts() {
	for name in localhost "$(uname -n)"; do
		getent hosts "$name" >/dev/null && continue
		say "adding $name to /etc/hosts, which does not name it (pmcd refuses local access without)"
		echo "127.0.0.1 $name" >>/etc/hosts
	done
}

# Waits for the background half of pmcd's start script, which runs every PMDA's Upgrade and holds a lock: in $PCP_TMPFILE_DIR in
# PCP 6.0, in $PCP_PMDAS_DIR in 6.3 and later, none in 5.2. Containers' pmcd is not meant. Half a minute at most.
upgrades_done() {
	tries=0
	while [ $tries -lt 60 ] && { [ -e "$PCP_TMPFILE_DIR/pmda.auto.update" ] || [ -e "$PCP_PMDAS_DIR/pmda.auto.update" ] ||
		pgrep --ns $$ --nslist net -f "^/bin/sh $PCP_RC_DIR/pmcd (re)?start" >/dev/null; }; do
		sleep 0.5
		tries=$((tries + 1))
	done
}

# what the directory below target is called
host_triple() { rustc -vV | sed -n 's/^host: //p'; }

# Debian's mirror: $MIRROR, else the one that apt's sources name, else the usual one
debian_mirror() {
	# shellcheck disable=SC2016 # for apt to expand
	mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' | awk '/\/debian\/*$/ && !site { site = $0 } END { print site }')}
	echo "${mirror:-http://deb.debian.org/debian}"
}

# debian_tree SUITE FILE PACKAGES: a minimal system with these packages (a list with commas) in a tar file. A mirror that has fallen
# behind will do; its signature is checked all the same. What pcp starts while it is installed keeps the tree's /proc busy, and so ends
# with dpkg; what else is started ends with mmdebstrap. Java's package cannot do without the directory of the manuals that are left out.
debian_tree() {
	unshare --pid --fork --kill-child mmdebstrap --variant=minbase --include="$3" --aptopt='Acquire::Check-Valid-Until "false"' \
		--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' --setup-hook="mkdir -p \"\$1/usr/share/man/man1\"" \
		--dpkgopt='post-invoke=pkill -KILL "^pm" 2>/dev/null || :' "$1" "$2" "$(debian_mirror)"
}

# compile_examples PROGRAM DIRECTORY [MACHINE]: the programs of examples/ into DIRECTORY, with the headers that PROGRAM was built with
compile_examples() {
	for headers in "${1%/*}"/build/libbpf-sys-*/out/include; do :; done
	CPATH=$headers${CPATH:+:$CPATH} make -s -C "$src/examples" OUT="$2" MACHINE="${3:-$(uname -m)}"
}
