"""The engine's process: started, controlled and measured by the parent, which never imports it."""
