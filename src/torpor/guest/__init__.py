"""What runs inside a machine: the agent and the wire format it speaks.

Standard library only, and nothing of Torpor's above it: this package is copied onto the tools disk
and run there by the guest's own Python. The host imports :mod:`torpor.guest.wire` from here, so
that the format has one definition.
"""
