"""From packets to pixels: decoders, colour, the look-ahead frame cache and the ordered pipeline."""
