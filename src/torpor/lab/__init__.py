"""Proofs and benchmarks: what Torpor claims, shown on this host by real machines.

Stands beside the command line and uses the public parts of the packages below, as a user would.
"""
