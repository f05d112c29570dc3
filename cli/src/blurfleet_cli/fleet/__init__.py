"""A local fleet without Kubernetes: three nodes, each a Triton, an agent and a gateway, and one controller.

`plan` says what a fleet consists of (pure data), `local` starts, watches and stops it. Processes are kept by
supervisord, which is itself kept by `keeper`; all of them end with it.
"""
