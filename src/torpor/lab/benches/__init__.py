"""The benchmarks of ``torpor lab bench``, one module for each group of figures."""
