"""The shipped configuration files: data only, found through `headrace.models.configfile`."""
