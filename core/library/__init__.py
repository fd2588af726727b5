"""What is in the workspace: models, extensions, exports, and the records beside their files."""
