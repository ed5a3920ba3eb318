"""The bodies of requests and answers, as the OpenAPI document has them.

Fields without a mark are those of DigitalOcean's API; where a description begins with ``Torpor:``
it is one of Torpor's own.
"""
