"""The engine behind HTTP, as the OpenAI API."""
