"""Series recorded by other programs: reading tables, time columns, units, judging each column."""
