"""The views and macros that queries are written against, one SQL file each."""
