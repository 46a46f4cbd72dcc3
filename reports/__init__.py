"""Tables, plots, HTML and timelines."""
