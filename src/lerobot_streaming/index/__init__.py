"""Part of lerobot_streaming: index."""
