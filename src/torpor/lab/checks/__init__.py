"""The experiments of ``torpor lab proof``, one module each."""
