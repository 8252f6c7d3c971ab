"""Data and models that are shipped with the package, one folder each."""
