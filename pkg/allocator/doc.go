// Package allocator hands out a node's pod addresses.
//
// It is an index over facts that the kernel also holds: a lost or damaged store is rebuilt from the kernel, and never by
// guessing that an address is free. Nothing outside the node is asked; Azure puts an address on one NIC only, so a node decides
// alone.
//
// # States
//
//	          Lease            Release              Cool              cool-down over
//	free ─────────────► leased ───────► releasing ───────► cooling ─────────────────► free
//	  ▲                   │ Block (the kernel said: in use)
//	  └───────────────────┘
//
// Beside the state stand two observations: present (metadata lists the address) and blocked (with a reason). Metadata changes
// those, never the state. An address is handed out when it is free (or cooling for longer than the cool-down), present and not
// blocked; the one that has been idle for longest goes first, new ones enter at the tail. The attachment that had an address last
// may have it while it is cooling, if it asks for that address.
//
// # Layout
//
// One bbolt file, ipam.db, guarded by ipam.lock (internal/boltfile has locks, schema and damage). Keys are big endian so that
// they sort, values little endian; every value ends in a CRC-32C over bucket, key and value. Times are nanoseconds of the boot
// clock.
//
//	addr4    address 4 bytes  -> record
//	addr6    address 16 bytes -> record
//	keys     first 8 bytes of the lease's key, address -> nothing       leased and releasing
//	free     NIC id uint16, since uint64, address -> nothing            free, present, not blocked: the queue
//	cooling  NIC id uint16, since uint64, address -> nothing            cooling, present, not blocked
//	blocked  reason uint8, address -> nothing
//	missing  address -> nothing                                         missing in metadata once
//	nics     MAC 6 bytes      -> NIC id uint16, skipped uint8, link, primary, n, n subnets (strings as in records)
//	counts   NIC id uint16    -> free, leased, releasing, cooling, blocked, absent: uint32 each
//	meters   address          -> flags uint8 (used, off), number uint16, [use uint64, key 16 bytes, namespace, pod], [off since uint64],
//	                             series
//	slots    number uint16    -> nothing                                numbers below the highest that no meter has
//	totals   first 16 bytes of the SHA-256 of a namespace -> namespace, time not counted uint64, series
//	state    generation       -> uint64, the last one drawn; never below the boot clock
//	         snapshot         -> flags uint8 (known, ever known), time uint64, digest 32 bytes, mark 32 bytes
//	         rebuilt          -> ran uint8, time uint64
//	         node             -> pkg/node's own
//	         nics             -> uint16, the last NIC id drawn
//	         books            -> highest number of a meter drawn uint16, number of namespaces with totals uint32, the node's own
//	                             series, n, n times: reason, resets uvarint
//	meta     complete         -> see internal/boltfile
//
// A record is
//
//	state uint8, flags uint8, NIC id uint16, since uint64           12 bytes: all of a free address
//	[missing since uint64]                                          flag 0x04
//	[reason uint8, blocked since uint64]                            flag 0x08
//	[generation uint64]                                             flag 0x10
//	[key 16 bytes] of the lease that ended                          flag 0x40: cooling
//	[owner]                                                         flag 0x20: leased and releasing
//
// and an owner is
//
//	[key 16 bytes] [network 16 bytes]     flags 0x40, 0x80: left out where they are the hashes of the names below
//	netns inode uvarint, wall time in ms uvarint
//	network, container id, ifname, namespace, pod, uid, netns, main's type, link name: strings
//
// Series are n, then n times: direction, class, and as uvarint the bytes and packets of the kernel's counter up to which all is in
// the totals, and those of this use.
//
// A string is uvarint (length << 2 | form) and its bytes; hex digits, UUIDs and names made from the key are stored as the bytes
// they stand for (codec.go).
//
// # Traffic
//
// A meter belongs to an address, as its counters in the kernel do, and outlives leases: it keeps the values up to which all bytes
// are in a total, so what a new lease finds there is not its own. Adding is by differences: a fold may be repeated, or be late for a
// use that has ended, and no byte is added twice. A counter that fell adds nothing and is noted as a reset. The last values of a
// lease and its end are one transaction.
//
// # Caveats
//
// The generation of an address is kept while it is leased, releasing or cooling, and while a conntrack flush is due. NIC id 0
// stands for the unknown NIC of a lease that a rebuild found. An absent address that nobody holds is forgotten after an hour, and
// its meter with it. A store of schema 1 has none of meters, slots, totals and books; the first change adds them.
package allocator
