# What layout 1 has in the kernel, made without the product: the node of the field cases, the pod c1 of network vmssnet with
# 10.20.0.10, and 10.20.0.11 noted for a pod of another main plugin. POD is the pod's namespace, INODE that of the namespace.
set -eu

# The node. Protocol 217, tables 28201 (the first NIC's) and 28299, rules 499 to 599.
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.eth0.forwarding=1
nft -f - <<'END'
table ip native_vmss {
	set nics { type ifname; elements = { "eth0" } }
	set native { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 100.64.0.0/10, 172.16.0.0/12, 192.168.0.0/16 } }
	chain cfg_0123456789abcdef {
		return comment "gone when the table was flushed"
	}
	chain prerouting {
		type filter hook prerouting priority raw; policy accept;
		iifgroup 28278 fib saddr . iif oif 0 drop comment "spoofed source"
		iifgroup 28278 ip daddr 127.0.0.0/8 drop comment "loopback of the node"
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname @nics oifname @nics ct status ! snat,dnat reject with icmp host-unreachable comment "a node is no router"
		iifname @nics oifname @nics ct state invalid,untracked reject with icmp host-unreachable comment "a node is no router"
		iifgroup 28278 ip daddr 168.63.129.16 tcp dport { 80, 32526 } drop comment "wireserver"
		iifgroup 28278 ip daddr 169.254.169.254 reject with icmp admin-prohibited comment "metadata service"
	}
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		iifgroup 28278 ip daddr { 168.63.129.16, 169.254.169.254 } snat to 10.20.0.4 comment "platform addresses"
		iifgroup 28278 oifname "eth0" ip daddr != @native snat to 10.20.0.4 fully-random comment "outside nativeCIDRs"
		iifgroup 28278 oifname @nics ip daddr != @native masquerade fully-random comment "outside nativeCIDRs"
	}
}
END
ip rule add pref 599 nop protocol 217
ip rule add pref 499 iif lo goto 599 protocol 217
ip rule add pref 500 to 10.20.0.0/24 lookup main suppress_prefixlength 24 protocol 217
ip rule add pref 510 to 10.20.0.0/24 lookup 28201 protocol 217
ip route add 10.20.0.0/24 via 10.20.0.1 dev eth0 table 28201 protocol 217 onlink

# The pod. Group 28278; name, MACs and alias are made from hashes of network, container and interface.
link=veth8c6d37388d8 host=02:57:9c:95:21:e6 pod=02:57:9c:95:21:e7
ip link add "$link" address "$host" mtu 1500 group 28278 type veth peer name eth0 address "$pod" mtu 1500 netns "$POD"
ip link set "$link" alias \
	"nvm1 10.20.0.10 000000000000002a 02f3f6021a3d5de7e6ac5dcf751d23f0 8c6d37388d800d1b579c9521e7a9c80f $INODE team-a/web-0"
nsenter --net="/run/netns/$POD" sh -eu <<END
sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1
ip link set lo up
ip addr add 10.20.0.10/32 dev eth0
ip link set eth0 up
ip route add 169.254.1.1 dev eth0 scope link
ip route add default via 169.254.1.1 dev eth0
ip neigh replace 169.254.1.1 lladdr $host nud permanent dev eth0
END
sysctl -qw "net.ipv6.conf.$link.disable_ipv6=1" "net.ipv4.conf.$link.forwarding=1" "net.ipv4.conf.$link.rp_filter=1" \
	"net.ipv4.conf.$link.accept_redirects=0" "net.ipv4.conf.$link.accept_source_route=0"
ip link set "$link" up
ip neigh add proxy 169.254.1.1 dev "$link"
ip route add 10.20.0.10/32 dev "$link" protocol 217 scope link

# A pod of another main plugin: a route that no rule looks up.
ip route add unreachable 10.20.0.11/32 table 28299 protocol 217
