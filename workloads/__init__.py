"""What arrives at an engine and what came out: arrivals, lengths, drivers, records, SLO and goodput."""
