"""The load generator: a pure core (arrivals, workloads, traces, statistics), targets that speak, reports that show."""
