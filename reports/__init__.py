"""What a run or a study looks like to a person: terminal, Markdown and HTML."""
