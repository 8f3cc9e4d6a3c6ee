"""What every room below stands on: settings, metrics, labels, units, errors and the clock."""
