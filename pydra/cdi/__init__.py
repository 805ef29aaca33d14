"""Container Device Interface (CDI) 1.1.0: container edits and spec files."""
