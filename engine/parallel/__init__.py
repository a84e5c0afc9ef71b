"""Several devices: one model split over them, and replicas of one engine behind a router."""
