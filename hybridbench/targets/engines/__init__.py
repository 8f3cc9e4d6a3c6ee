"""Third-party engines, one file each; ``inside/`` has scripts that run in their environments."""
