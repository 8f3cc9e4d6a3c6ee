"""The engine's process: started, controlled and measured by the parent; imported by no one."""
