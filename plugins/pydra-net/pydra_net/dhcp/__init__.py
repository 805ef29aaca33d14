"""A client of DHCP for IPv4, as small as an interface in a pod needs it. Source: RFC 2131, 2132, 3396, 3442."""
