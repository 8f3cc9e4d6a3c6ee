"""Records shared by all layers: what the wire, the disk, the analysis and the reports exchange."""
