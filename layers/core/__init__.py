"""`Layer` and what it is made of, and layers that have no other room."""
