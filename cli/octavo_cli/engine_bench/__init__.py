"""`octavo bench engine` and `octavo bench quality`: the bare engine, the peers beside it, and the way through the services."""
