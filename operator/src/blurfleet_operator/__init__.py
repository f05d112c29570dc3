"""Rollout decisions: which node gets which engine when, who is reverted, what is quarantined.

`decide` is pure and knows no store and no clock; `reconcile` observes, decides and applies over the store port;
`controller` turns it on every change. Trips are decided on the nodes: nothing here stands between a bad frame and its
swap.
"""
