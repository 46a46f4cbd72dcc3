"""The numpy executor of exported tensor graphs."""
