#!/usr/bin/env bash
# Puts promtool at bin/peers/promtool/, where tests look for it: that of PATH, or the one in Debian's package prometheus. Of that package
# only the program is taken: it would install a server, start it, and bring eleven more packages.
. "$(dirname "$0")/lib.sh"

cached=${XDG_CACHE_HOME:-$HOME/.cache}/native-vmss/promtool
if ! tool=$(command -v promtool); then
	tool=$cached/promtool
	if [ ! -x "$tool" ]; then
		[ "${INSTALL:-}" = 1 ] || die "missing: promtool (INSTALL=1 takes it out of the package prometheus on Debian and Ubuntu)"
		echo "taking promtool out of the package prometheus (once)"
		new=$cached.new.$$
		mkdir -p "$new"
		apt-get update -qq
		(cd "$new" && apt-get download -qq prometheus >/dev/null && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool >promtool)
		rm "$new"/*.deb
		chmod +x "$new/promtool"
		mv -T "$new" "$cached" 2>/dev/null || rm -rf "$new" # another run was first
	fi
fi
mkdir -p bin/peers/promtool
ln -sfnT "$tool" bin/peers/promtool/promtool
