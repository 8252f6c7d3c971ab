"""Questions with pictures, one subpackage or module per source."""
