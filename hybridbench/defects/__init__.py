"""Historic bugs of hybrid engines, put back from outside so that their detection can be shown."""
