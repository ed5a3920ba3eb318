"""Previews: what listens inside a session, in a browser, on a port of the server's own.

listener   accepts connections, and ends them
heads      judges the head of a request before anything is made of it
http1      what comes in as HTTP/1.1, one request after the other
heads2     the same for HTTP/2
http2      what comes in as HTTP/2, requests side by side
inbound    a request, whatever it came in
addresses  where previews are: which session and port a request means
admission  who may
headers    what is passed on, and what is not
upstream   requests to a port of a session, and connections to it that are kept
passing    one request and its answer, passed on
pages      what is answered in place of the session
"""
