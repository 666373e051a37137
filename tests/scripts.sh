#!/bin/bash
# The scripts' ways with files that are not theirs: pmcd.conf on a full disk, directories of other owners. Needs root.
# Works on a small file system in a mount name space of its own; nothing outside is changed.
set -u
src=$(cd "$(dirname "$0")/.." && pwd) || exit 1
[ "$(id -u)" -eq 0 ] || { echo "skipped: needs root"; exit 77; }
command -v unshare >/dev/null || { echo "skipped: unshare (util-linux)"; exit 77; }
if [ "${1:-}" != inside ]; then exec unshare --mount "$0" inside; fi

scratch=$(mktemp -d) || exit 1
trap 'umount "$scratch/disk" 2>/dev/null; rm -rf "$scratch"' EXIT
failed=0
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
is() { [ "$1" = "$2" ] || { echo "$1 instead of $2"; false; }; }

# pmcd.conf of exactly a page, the only one that the disk has; our line is longer than the one whose place it takes.
foreign='bcc	149	pipe	binary	/x'
conf=$scratch/disk/pmcd.conf
mkdir "$scratch/disk" "$scratch/kept"
mount -t tmpfs -o size=4k none "$scratch/disk" || { echo "skipped: a tmpfs of its own"; exit 77; }
{ echo "$foreign"; printf '[access]\n'; } >"$scratch/conf"
{ cat "$scratch/conf"; printf '#%*s\n' $((4096 - $(stat -c %s "$scratch/conf") - 2)) ''; } >"$conf"
chown 65534:65534 "$conf"
chmod 640 "$conf"
cp -a "$conf" "$scratch/kept/"
ln -s "$conf" "$scratch/link"
# shellcheck disable=SC2034 # registration.sh reads it
PCP_PMCDCONF_PATH=$scratch/link
PCP_SYSCONF_DIR=$scratch/none
# shellcheck source=scripts/registration.sh
. "$src/scripts/registration.sh"

for awk in gawk mawk busybox; do
	command -v $awk >/dev/null || continue
	mkdir -p "$scratch/bin"
	ln -sf "$(command -v $awk)" "$scratch/bin/awk"
	before=$PATH
	PATH=$scratch/bin:$PATH
	cp -a "$scratch/kept/pmcd.conf" "$conf"
	mount -o remount,size=4k "$scratch/disk"
	check "$awk: where the disk is full, register fails" not register
	check "$awk: and pmcd.conf is as it was" cmp "$scratch/kept/pmcd.conf" "$conf"
	check "$awk: with nothing left beside it" is "$(ls -A "$scratch/disk")" pmcd.conf
	# The copy has room, and what is longer has not.
	mount -o remount,size=8k "$scratch/disk"
	check "$awk: where the disk becomes full, register fails" not register
	check "$awk: and pmcd.conf is as it was, too" cmp "$scratch/kept/pmcd.conf" "$conf"
	mount -o remount,size=64k "$scratch/disk"
	check "$awk: with room it has our line" register
	check "$awk: once, and no other's" is "$(grep -c '	149	' "$conf")$(grep -c '^corebcc	149	' "$conf")" 11
	check "$awk: all other lines stay" is "$(tail -n +2 "$conf" | md5sum)" "$(tail -n +2 "$scratch/kept/pmcd.conf" | md5sum)"
	check "$awk: owner and mode stay" is "$(stat -c %u:%g:%a "$conf")" 65534:65534:640
	check "$awk: and the link to it" test -L "$scratch/link"
	check "$awk: nothing is left beside it" is "$(ls -A "$scratch/disk")" pmcd.conf
	PATH=$before
done
check "a command that fails changes nothing" not replace "$conf" false
check "of the file" grep -q '^corebcc' "$conf"

# A checkout of a user's, in which root built with the machine's cargo, and one with the user's.
# shellcheck disable=SC2034 # prerequisites.sh reads it
prog=tests/scripts.sh
mkdir -p "$scratch/checkout/target/debug" "$scratch/machine/bin" "$scratch/home/.cargo/registry"
chown 65534:65534 "$scratch/checkout" "$scratch/home/.cargo"
src=$scratch/checkout
# shellcheck source=scripts/prerequisites.sh
. "$(dirname "$0")/../scripts/prerequisites.sh"
hand_back "$src/target" "$scratch/machine" "$scratch/home/.cargo" "$scratch/none"
owners() { stat -c %u "$@" | tr '\n' ' '; }
check "what root built in a user's checkout is the user's" is "$(owners "$src/target" "$src/target/debug")" "65534 65534 "
check "what root fetched into the user's cargo home, too" is "$(owners "$scratch/home/.cargo/registry")" "65534 "
check "the machine's toolchain stays root's" is "$(owners "$scratch/machine" "$scratch/machine/bin")" "0 0 "

echo "$failed failed"
[ "$failed" -eq 0 ]
