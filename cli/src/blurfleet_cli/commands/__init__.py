"""One module per command or group of commands; `main` loads each only when it is called."""
