"""The requests of the API, one function for each: what is asked for, and how its answer is read.

The methods of both clients are made of these; see :mod:`torpor.client.call`.
"""
