"""The kernel of blurfleet: what every other package agrees on.

Pure data and pure decisions: the kinds people apply (`api`), what an image must become (`contract`, `pixels`), how a
picture is judged (`quality`), how bytes are named (`identity`), where desired and observed state live (`store`), and
what gateway, agent and Triton say to each other on one node (`serving`). It imports no other blurfleet package.
"""

__version__ = "0.1.0"
