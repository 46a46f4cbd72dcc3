"""The machine in Amaranth, its description, instruction fields, emission, synthesis and resources."""
