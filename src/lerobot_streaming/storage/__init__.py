"""Where bytes come from: one small range-reading protocol and its backends."""
