"""Running graphs: compiled programs, and the reference interpreter that defines their meaning."""
