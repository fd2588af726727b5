"""What comes into the workspace from outside: from the hub, a web server, an archive or a folder. Never loads torch."""
