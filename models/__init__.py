"""Graph of operators, importers, compression schemes, configuration files."""
