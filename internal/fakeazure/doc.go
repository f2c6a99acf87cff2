// Package fakeazure is a cloud that behaves like Azure's where pods' addresses are concerned.
//
// It speaks the real protocols, so that the shipped binaries run against it unchanged. Cloud is the model: VMs with NICs, their
// addresses, subnets with route tables. Everything else looks at it:
//
//   - IMDS at 169.254.169.254:80: the instance document of the VM that asks, told by its source address. It insists on the
//     Metadata header and an api-version, refuses X-Forwarded-For and any method but GET, allows 5 requests per second and VM (429),
//     spells all primitives as strings, and shows changed addresses after a lag of its own.
//   - Wireserver at 168.63.129.16:80 and :32526: the goal state, which holds WireserverSecret, so that a test can prove that
//     pods don't see it, and the list of NICs that azure-ipam reads.
//   - DNS at 168.63.129.16:53, udp and tcp: A records.
//   - Admin on a unix socket: changes, faults, counters.
//
// The platform's services answer the primary address of a VM's primary NIC and nobody else: an IMDS or wireserver request of
// another source gets 403, a question to the resolver nothing, and the log of "" has it. A fabric that routes like Azure's drops
// such packets before; it follows the model by OnChange.
//
// # Config
//
// A Topology in JSON; testdata/cloud.json is an example. Keys that aren't known are errors.
//
//	location, subscriptionId, resourceGroup   for the "compute" part; have defaults
//	subnets[]      name, prefix; routes[]: prefix, nextHop (an address of a NIC that forwards)
//	vms[]          name; scaleSet, instanceId, computerName, zone; nics[], the first is the primary one
//	  nics[]       name, mac (any spelling), subnet (a name), primary; secondaries[]: addresses or "first-last"; v6[]
//	dns            name -> addresses; <computerName>.internal.cloudapp.net needs no entry
//	imdsLag        "5s": how long metadata takes to show a change                                default: 0
//	imdsRate       IMDS requests per second and VM                                               default: 5; negative: any
//	addressLimit   addresses of one NIC                                                          default: 256; negative: any
//	reuseHold      "8m": how long a removed address isn't picked again                           default: 8m; negative: no time
//	seed           for the cloud's choice of addresses
//
// # Admin
//
// JSON in, JSON out; an error has a status of 400 or above and {"error":"…"}.
//
//	GET    /topology            the model
//	GET    /counters            VM -> "imds 200" -> number of answers
//	GET    /requests?vm=NAME    log, in order of arrival; without vm that of strangers
//	DELETE /requests            empties logs and counters
//	GET    /shapes              names for a fault's "shapes"
//	POST   /addresses/add       {"vm":"vmss_0","nic":"nic0","addresses":["10.20.0.30-10.20.0.33"]} or {"vm":"vmss_0","count":4}
//	POST   /addresses/remove    {"vm":"vmss_0","addresses":["10.20.0.30"]}
//	POST   /faults              {"vm":"vmss_0","steps":[{"status":429,"headers":{"Retry-After":"2"}},{"shapes":["no-network"],"times":-1}]}
//	POST   /lag                 {"vm":"vmss_0","lag":"5s"}
//	POST   /rate                {"vm":"vmss_0","perSecond":-1}
//	POST   /vms/add             a VM as in the config
//	POST   /vms/remove          {"vm":"vmss_0"}
//
// For example: curl --unix-socket /run/fake-azure.sock -d '{"vm":"vmss_0","count":4}' http://fake/addresses/add
//
// A step of a script (Fault) says what one IMDS request for the instance document meets: a status with body and headers as they
// are, a delay, one byte per so much time, a connection that is cut, or a document of an odd shape. After the last step answers
// are ordinary again; "steps":[] ends a script.
//
// What Azure does is taken from its documentation (MicrosoftDocs/azure-compute-docs instance-metadata-service.md at commit
// 1dc6d3b8) and from programs that live on it (azure-container-networking at commit cbd7560c). How it refuses a stranger, and
// whether refused requests count against the five, is not documented: the choice here is ours.
package fakeazure
