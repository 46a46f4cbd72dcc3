"""One file per command. A file here *is* the registration: `headrace NAME` loads `commands/NAME.py`."""
