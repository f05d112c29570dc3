"""One process per node: proves engines, guards them frame by frame, and swaps to the fallback on its own authority.

It reads its NodeEngine from the store and writes that object's status, nothing else. What it must not forget (swaps,
latches, attempts) is in its journal; what the gateway must know is in the routing file. Deciding is pure and tested as
tables; everything that touches Triton, disk or sockets is a thin adapter around it.
"""
