"""The load client: sends a profile's traffic, or a trace, as HTTP requests to a server.

It is its own process, so that its memory and processor time are separate from the server's.
"""
