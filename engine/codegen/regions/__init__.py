"""Native regions: a loop, a branch or a straight run of operations as one machine-code function."""
