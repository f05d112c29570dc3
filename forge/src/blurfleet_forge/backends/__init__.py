"""Engine backends: what turns a checked graph and a precision map into an engine that some runtime serves."""
