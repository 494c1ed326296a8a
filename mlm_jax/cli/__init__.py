"""Programs of the command line, one file a verb."""
