"""Features: each package is one feature, with the same file names in all of them."""
