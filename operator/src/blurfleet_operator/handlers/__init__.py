"""What kopf calls. Handlers hand a change to the loop and return: no decision, no wait and no status is theirs.

Their ids are part of what kopf may persist; they are given by hand and never renamed. There are no finalizers, timers
or indices on our kinds: deleting an object must never wait for an operator.
"""
