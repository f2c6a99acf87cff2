# What layout 2 has in the kernel beside layout 1. Its host ends have accept_ra 0 and addr_gen_mode 1 too; those of layout 1 live on.
nft add rule ip native_vmss prerouting ip saddr 0.0.0.0 iifgroup 28278 drop comment '"no source"'
link=veth8c6d37388d8
sysctl -qw "net.ipv6.conf.$link.accept_ra=0" "net.ipv6.conf.$link.addr_gen_mode=1"
