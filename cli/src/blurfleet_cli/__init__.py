"""The `blurfleet` command line: thin commands over the other packages; the only package that may import them all."""
