"""What `octavo bench engine` and `octavo bench quality` measure inside a worker's process; the command line drives it."""
