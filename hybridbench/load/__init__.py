"""The load client: a profile's traffic, or a trace, as requests to a server over HTTP.

A process of its own, so that neither its memory nor its processor time is that of what it asks.
"""
