"""Everything that comes into the workspace from outside: from a hub, a web server, an archive or a folder."""
