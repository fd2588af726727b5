"""Books as chapters of paragraphs: EPUB, HTML, Markdown and plain text."""
