"""Ways of decoding: greedy, sampled, and by beams."""
