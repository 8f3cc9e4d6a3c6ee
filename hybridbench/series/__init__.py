"""Series recorded by other programs: read tables, time columns and units; judge each column."""
