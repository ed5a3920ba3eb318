"""What the kernel does with a machine's packets, as nft's rules.

They sort, and are not what keeps a machine in: its network namespace has no second card and no
route outward, so a packet that got past a rule would have nowhere to go.
"""

from torpor.guest.card import ADDRESS

TAP = "machine"
"""The name of the wall's end of the wire."""
TCP_PORT, UDP_PORT = 15001, 15002
"""Where the wall listens for what was dialled anywhere. To dial one of these is to dial any other
port: it arrives as a connection to that port."""
DNS_PORT = 53
QUIC_PORT = 443

RULES = f"""\
flush ruleset

table netdev card {{
    chain arriving {{
        type filter hook ingress device "{TAP}" priority filter; policy drop;
        ether type arp accept
        ip saddr {ADDRESS} accept
    }}
}}

table inet wall {{
    chain dialled {{
        type filter hook prerouting priority mangle; policy drop;
        iifname != "{TAP}" drop
        ip daddr {{ 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/4, 255.255.255.255 }} drop
        tcp dport {DNS_PORT} accept
        # No QUIC: nobody listens, so the kernel refuses it, and clients take TCP at once.
        udp dport {{ {DNS_PORT}, {QUIC_PORT} }} accept
        meta l4proto tcp tproxy ip to :{TCP_PORT} accept
        meta l4proto udp tproxy ip to :{UDP_PORT} accept
        # There is no wall: the kernel refuses it, and the machine need not wait.
        meta l4proto {{ tcp, udp }} accept
    }}

    chain arrived {{
        type filter hook input priority filter; policy drop;
        iifname != "{TAP}" drop
        meta l4proto {{ tcp, udp }} accept
    }}

    chain passing {{
        type filter hook forward priority filter; policy drop;
    }}

    chain leaving {{
        type filter hook output priority filter; policy drop;
        oifname "{TAP}" ip daddr {ADDRESS} accept
    }}
}}
"""
"""In one piece, so that a change of them leaves no moment in between. Without conntrack, whose
tables a machine could fill."""
