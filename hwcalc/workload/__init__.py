"""What users send to a server: requests with their lengths, arrivals and common prefixes, made from words or read from a trace.

Nothing here knows an engine. ``request`` has the records, ``rows`` makes them of plain rows, ``blocks`` names the contents of blocks.
"""
