"""Build time: a pinned network becomes engines that carry their precision in the graph.

Source weights by hash -> checked, folded graph -> independent reference answers -> precision map -> typed graph with
explicit casts -> engine per target -> build record -> artifact named by its digest. Nothing here runs on a node.
"""
