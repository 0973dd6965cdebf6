"""A model server of several processes: `Supervisor` starts and joins them, `Member` is the place of one of them."""
