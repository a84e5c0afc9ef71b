"""The model: how it is named, described, found, loaded and computed."""
