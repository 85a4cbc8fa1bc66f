"""The plug-in module that lerobot's own discovery imports when this distribution is installed."""
