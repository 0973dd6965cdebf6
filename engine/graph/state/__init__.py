"""State: variables and other resources, where they live and who keeps them."""
