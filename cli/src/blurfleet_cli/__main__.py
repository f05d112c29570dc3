"""`python -m blurfleet_cli`: the same as the `blurfleet` script."""

from blurfleet_cli.main import main

main()
