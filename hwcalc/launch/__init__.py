"""Which servers a command, a script or a manifest would start: :func:`hwcalc.launch.read.read_launch`. Nothing is run, and nothing is fetched.

``shell`` and ``words`` take a text apart into commands, ``commands`` finds the servers among them, ``arguments`` reads a server's arguments by the table of its
engine (``profiles/engines/<engine>/flags.yaml``), and ``manifests``, ``kubernetes``, ``charts`` and ``files`` know where each kind of file keeps its
commands, images, variables and GPUs. ``planned`` makes the options of a plan of what was read, and ``told`` the server that is told something else.
"""
