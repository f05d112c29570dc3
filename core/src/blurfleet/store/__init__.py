"""Where desired and observed state live, behind one port: a folder of YAML here, the Kubernetes API elsewhere.

People and the operator write specs, the component that observes writes status; nobody else does. Deciding code sees
only the port, so that it runs unchanged over either.
"""
