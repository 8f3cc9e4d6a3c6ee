"""What every analysis needs of a record, read from it once."""
