"""Part of lerobot_streaming: decode."""
