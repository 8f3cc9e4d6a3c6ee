"""The one vocabulary of records: what the wire, the disk, the analysis and the reports pass on."""
