#!/usr/bin/env bash
# Makes the image of kind's nodes, once per content, and prints its name: Debian (base.sh), the built programs (binaries.sh), and
# inside it the images of the components, under the names that kubeadm asks for. DOCKER_HOST says where.
. "$(dirname "$0")/lib.sh"
need_root
export CGO_ENABLED=0

base=$(hack/kind/base.sh)
debian=$(debian "$base")
go build -trimpath -ldflags '-s -w' -o bin/kind/ ./e2e/kind/pause
readonly programs=bin/kind/kubernetes files=e2e/kind/node
version=$(pin k8s.io/kubernetes kubernetes)
go -C "$tools/kind" mod download sigs.k8s.io/kind
kind_files=$(go -C "$tools/kind" list -m -f '{{.Dir}}' sigs.k8s.io/kind)/images/base/files

content=$({
	readlink -f "$programs" bin/kind/{containerd,etcd,coredns} bin/peers/plugins
	echo "$base"
	cat "$0" "$files"/* bin/kind/pause
	find "$kind_files" -type f -print0 | sort -z | xargs -0 cat
} | key)
readonly node=nvt-kind-node:$content
if docker image inspect "$node" >/dev/null 2>&1; then
	echo "$node"
	exit
fi
echo "making the image of kind's nodes (once)" >&2
dir=$(mktemp -d "$cache/kind-images.XXXXXX")
trap 'rm -rf "$dir"' EXIT

cp -L bin/kind/etcd/server "$dir/etcd" # the module calls it so
docker image inspect "$debian" >/dev/null 2>&1 || docker import "$base" "$debian" >/dev/null
names=()
while read -r name; do
	program=$(basename "${name%:*}")
	case $program in
	pause) component "$name" scratch bin/kind/pause 'ENTRYPOINT ["pause"]' ;;
	coredns) component "$name" scratch bin/kind/coredns/coredns 'ENTRYPOINT ["coredns"]' ;;
	etcd) component "$name" scratch "$dir/etcd" ;;
	kube-proxy) component "$name" "$debian" "$programs/kube-proxy" ;;
	*) component "$name" scratch "$programs/$program" ;;
	esac
	names+=("$name")
	[ "$program" != pause ] || pause=$name
done < <("$programs/kubeadm" config images list --kubernetes-version "$version")

root=$dir/rootfs
mkdir -p "$root"/{etc/kubernetes/manifests,etc/containerd,kind,opt/cni/bin,usr/bin,usr/local/bin}
cp -a "$kind_files/." "$root/"
cp -L "$files/images.service" "$root/etc/systemd/system/"
cp -L "$programs"/{kubelet,kubeadm,kubectl} "$root/usr/bin/"
cp -L bin/kind/containerd/{containerd,containerd-shim-runc-v2,ctr} "$root/usr/local/bin/"
cp -L bin/peers/plugins/{loopback,portmap} "$root/opt/cni/bin/"
echo "$version" >"$root/kind/version"
# kind's settings fit its own images and machines that may do everything; these are the differences.
sed -i -e "s,sandbox_image = .*,sandbox_image = \"$pause\"," -e '/base_runtime_spec/d' \
	-e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' "$root/etc/containerd/config.toml"
sed -i -e '/^Limit/d' -e '/^OOMScoreAdjust/d' "$root"/etc/systemd/system/*.service
chmod -R u=rwX,go=rX "$root"
chmod 0755 "$root"/usr/local/bin/* "$root"/kind/bin/*
docker save --output "$root/kind/images.tar" "${names[@]}"

cp "$files/Dockerfile" "$dir/"
build --build-arg "BASE=$debian" --tag "$node" "$dir"
echo "$node"
