"""headrace: hardware co-design simulator and kernel generator for LLM accelerators.

Importing the package is cheap: nothing heavier than the standard library is loaded here.
"""

__version__ = "0.1.0"
